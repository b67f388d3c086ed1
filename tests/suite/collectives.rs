//! x
use spark_ccl::*;
fn run(n: usize, f: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    let comms = Communicator::local(n).unwrap();
    let hs: Vec<_> = comms.into_iter().map(|c| std::thread::spawn(move || { f(&c); c.finalize().unwrap(); })).collect();
    for h in hs { h.join().unwrap(); }
}
#[test]
fn smoke() {
    for n in [1, 2, 3, 5] {
        run(n, |c| {
            for count in [0usize, 1, 3, 1000, 100_000, 1_000_003] {
                let src: Vec<f32> = (0..count).map(|i| (i % 7 + c.rank()) as f32).collect();
                let mut dst = vec![0f32; count];
                c.all_reduce(&src, &mut dst, RedOp::Sum).run().unwrap();
                for i in 0..count {
                    let want: f32 = (0..c.size()).map(|r| (i % 7 + r) as f32).sum();
                    assert_eq!(dst[i], want, "n {} count {count} i {i}", c.size());
                }
                let mut reg = c.alloc::<f32>(count).unwrap();
                reg.copy_from_slice(&src);
                c.all_reduce_in_place(&mut reg, RedOp::Sum).run().unwrap();
                assert_eq!(&reg[..], &dst[..]);
            }
        });
    }
}
