//! The gradients of the example's transformer are the slopes of its loss.

use spark_ccl_testing::scramble;

use crate::model::Transformer;

/// A step that is large beside the rounding of the loss, and small beside the parameters.
const STEP: f32 = 1e-2;

#[test]
fn gradients_are_slopes() {
    let transformer = Transformer {
        characters: 5,
        context: 3,
        width: 4,
        heads: 2,
        layers: 2,
    };
    let mut parameters = transformer.parameters(1).unwrap();
    let samples: [&[u8]; 2] = [&[0, 1, 2, 3], &[4, 4, 0, 1]];
    let mut gradients = vec![Vec::new(); parameters.len()];
    let ready = |tensor: usize, gradient: &[f32]| -> Result<(), String> {
        assert!(gradients[tensor].is_empty(), "{tensor} is ready twice");
        gradients[tensor] = gradient.to_vec();
        Ok(())
    };
    transformer
        .learn(&parameters, &samples, 1.0, ready)
        .unwrap();
    for tensor in 0..parameters.len() {
        for it in 0..4 {
            let element = scramble(tensor as u64, it) as usize % parameters[tensor].info.len();
            let mut loss = |change: f32| {
                let values = parameters[tensor].values.get_mut::<f32>().unwrap();
                let before = values[element];
                values[element] += change;
                let ready = |_: usize, _: &[f32]| Ok::<_, String>(());
                let loss = transformer
                    .learn(&parameters, &samples, 1.0, ready)
                    .unwrap();
                parameters[tensor].values.get_mut::<f32>().unwrap()[element] = before;
                loss
            };
            let slope = (loss(STEP) - loss(-STEP)) / f64::from(2.0 * STEP);
            let gradient = f64::from(gradients[tensor][element]);
            let is_close = (slope - gradient).abs() < 2e-3 + 0.02 * gradient.abs();
            let name = &parameters[tensor].info.name;
            assert!(
                is_close,
                "{name}[{element}]: slope {slope}, gradient {gradient}"
            );
        }
    }
}
