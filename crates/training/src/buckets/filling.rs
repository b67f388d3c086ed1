//! The inner steps of [`Buckets`]: gradients are added, and calls are started.

use super::{
    Buckets, Buffer, Communicator, Contents, DType, Error, Failed, Layout, Model, NotFinite,
    Number, Options, Phase, Plan, Range, Readiness, RedOp, Reduce, Registered, Reports, Sharing,
    World, report,
};
use crate::agreement;
use crate::values::each;

/// The buckets for gradients that become ready in this order.
pub(super) fn plan(model: &Model, order: &[usize], options: &Options) -> Result<Plan, Error> {
    let in_f32 = options.in_f32;
    Plan::new(model, order, options.bucket_bytes, |dtype| match dtype {
        DType::F16 | DType::Bf16 if in_f32 => DType::F32,
        other => other,
    })
}

/// The elements of a buffer for a bucket of `len` elements.
pub(super) fn buffer_len(sharing: Sharing, world: World, len: usize) -> usize {
    match sharing {
        Sharing::Replicated => len,
        Sharing::Sharded => world.padded(len),
    }
}

impl Layout {
    /// Makes buffers for a plan. Collective.
    pub(super) fn new(
        comm: &Communicator,
        model: &Model,
        plan: Plan,
        sharing: Sharing,
    ) -> Result<Self, Error> {
        let (mut names, mut buffers) = (Vec::new(), Vec::new());
        for bucket in plan.buckets() {
            let len = buffer_len(sharing, World::of(comm), bucket.len);
            buffers.push(Buffer::Here(Contents::zeros(comm, bucket.dtype, len)?));
            let first = bucket.parts.first().map(|part| part.tensor);
            let first = first.map_or("", |tensor| &model.tensors()[tensor].name);
            let others = bucket.parts.len().saturating_sub(1);
            names.push(format!("gradients of {first:?} and {others} more"));
        }
        Ok(Self {
            plan,
            names,
            buffers,
        })
    }
}

impl Buckets {
    /// Begins the next step if the last one is finished.
    pub(super) fn begin(&mut self) -> Result<(), Error> {
        match self.phase {
            Phase::Open => return Ok(()),
            Phase::Failed => return Err(Error::Stale { step: self.step }),
            Phase::Finished => {}
        }
        if let Some(next) = self.next.take() {
            self.layout = next;
        }
        self.readiness = Readiness::new(&self.layout.plan);
        self.is_filled.fill(false);
        self.ready_order.clear();
        self.not_finite = None;
        self.step += 1;
        self.phase = Phase::Open;
        Ok(())
    }

    /// Adds a gradient to its place.
    pub(super) fn add<T: Number>(&mut self, tensor: usize, gradient: &[T]) -> Result<(), Error> {
        self.admit(tensor, gradient)?;
        if self.options.find_non_finite && self.not_finite.is_none() {
            let element = gradient.iter().position(|it| !it.is_a_number());
            self.not_finite = element.map(|element| NotFinite { tensor, element });
        }
        let is_first = !std::mem::replace(&mut self.is_filled[tensor], true);
        let (bucket, part) = self.layout.plan.place(tensor);
        let Buffer::Here(values) = &mut self.layout.buffers[bucket] else {
            return Err(Error::Stale { step: self.step });
        };
        let range = part.range();
        if let Some(own) = values.get_mut::<T>() {
            add(&mut own[range], gradient, |it| it, is_first);
        } else if let Some(own) = values.get_mut::<f32>() {
            add(&mut own[range], gradient, Number::to_f32, is_first);
        }
        Ok(())
    }

    /// Checks that a gradient fits its tensor, and is not one too many.
    fn admit<T: Number>(&self, tensor: usize, gradient: &[T]) -> Result<(), Error> {
        let problem = match self.model.tensors().get(tensor) {
            None => {
                let count = self.model.tensors().len();
                format!("tensor {tensor} of a model with {count}")
            }
            Some(info) => {
                let reduced = self.layout.plan.buckets()[self.layout.plan.place(tensor).0].dtype;
                let (name, seen) = (&info.name, gradient.len());
                if seen != info.len() {
                    format!(
                        "tensor {name:?} has {} elements, its gradient {seen}",
                        info.len()
                    )
                } else if T::DTYPE != info.dtype && T::DTYPE != reduced {
                    format!(
                        "tensor {name:?} is {}, its gradient {}",
                        info.dtype,
                        T::DTYPE
                    )
                } else if self.readiness.is_ready(tensor) {
                    let step = self.step;
                    format!(
                        "tensor {name:?} was ready before in step {step}, which is not \
                             finished: `accumulate` all parts but the last one"
                    )
                } else {
                    return Ok(());
                }
            }
        };
        Err(Error::Invalid {
            what: "a gradient",
            problem,
        })
    }

    /// Starts to reduce these buckets.
    pub(super) fn start(
        &mut self,
        comm: &Communicator,
        buckets: Range<usize>,
    ) -> Result<(), Error> {
        let op = match self.options.reduce {
            Reduce::Sum => RedOp::Sum,
            Reduce::Mean => RedOp::Avg,
        };
        for bucket in buckets {
            let Buffer::Here(mut values) =
                std::mem::replace(&mut self.layout.buffers[bucket], Buffer::Away)
            else {
                return Err(Error::Stale { step: self.step });
            };
            let described = &self.layout.plan.buckets()[bucket];
            for part in &described.parts {
                if !self.is_filled[part.tensor] {
                    values.clear(part.range());
                }
            }
            // The rest has results of the last step.
            values.clear(described.len..values.len());
            let name = &self.layout.names[bucket];
            let sharing = self.options.sharing;
            let started =
                each!(Contents, values, numbers => reduce(comm, numbers, op, sharing, name));
            self.layout.buffers[bucket] = Buffer::InFlight(started?);
            self.timeline.started();
        }
        Ok(())
    }

    /// Starts what is left, and hears the reports of all ranks. The inner error is one after which
    /// the next step can begin.
    pub(super) fn exchange_reports(
        &mut self,
        comm: &Communicator,
    ) -> Result<Result<Vec<report::Absent>, Error>, Error> {
        let rest = self.readiness.rest();
        self.start(comm, rest)?;
        let is_filled = self.is_filled.iter().copied();
        let own = report::encode(self.step, self.not_finite, is_filled);
        let mut all = vec![0; own.len() * comm.size()];
        let call = comm.all_gather(&own, &mut all).by_any_path();
        self.blocked(|| call.named("report of a step").run())?;
        let reports = Reports::new(&self.model, &all, comm.size());
        reports.check_steps(comm)?;
        if !self.is_ordered {
            self.learn_order(comm)?;
        }
        let reports = Reports::new(&self.model, &all, comm.size());
        Ok(reports.check_finite(comm).map(|()| reports.absent()))
    }

    /// Has the next step's buckets follow the order in which gradients became ready on rank 0.
    /// Where they are sharded, the optimizer's state is bound to the buckets, which stay. They
    /// stay, too, where a rank lacks memory for others beside them.
    fn learn_order(&mut self, comm: &Communicator) -> Result<(), Error> {
        self.is_ordered = true;
        if self.options.sharing == Sharing::Sharded {
            return Ok(());
        }
        let own: Vec<_> = self.ready_order.iter().map(|&it| it as u64).collect();
        let first = self.blocked(|| agreement::tell(comm, 0, bytemuck::cast_slice(&own)))?;
        let first = first.chunks_exact(size_of::<u64>());
        let first = first.map(|bytes| bytemuck::pod_read_unaligned::<u64>(bytes) as usize);
        let mut order: Vec<_> = first.collect();
        // Tensors of which rank 0 has no gradients come last, at the end of a step.
        let mut is_there = vec![false; self.is_filled.len()];
        for &tensor in &order {
            is_there[tensor] = true;
        }
        order.extend(
            (0..is_there.len())
                .rev()
                .filter(|&tensor| !is_there[tensor]),
        );
        let plan = plan(&self.model, &order, &self.options)?;
        if plan != self.layout.plan {
            let sharing = self.options.sharing;
            self.next = match Layout::new(comm, &self.model, plan, sharing) {
                // All ranks get this error if one of them lacks memory.
                Err(Error::Call(spark_ccl::Error::Memory { .. })) => None,
                made => Some(made?),
            };
        }
        Ok(())
    }

    /// Notes a failure, after which the ranks may have different states.
    pub(crate) fn unless_failed<T>(&mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        if outcome.is_err() {
            self.phase = Phase::Failed;
        }
        outcome
    }
}

/// Writes a gradient, or adds it to what is there.
fn add<T: Number, G: Number>(own: &mut [T], gradient: &[G], as_own: fn(G) -> T, is_first: bool) {
    let pairs = own.iter_mut().zip(gradient);
    if is_first {
        pairs.for_each(|(own, &it)| *own = as_own(it));
    } else {
        pairs.for_each(|(own, &it)| *own = own.plus(as_own(it)));
    }
}

/// Starts to reduce a bucket.
fn reduce<T: Number>(
    comm: &Communicator,
    buffer: Registered<T>,
    op: RedOp,
    sharing: Sharing,
    name: &str,
) -> Result<spark_ccl::Pending<Contents>, Error>
where
    Contents: From<Registered<T>>,
{
    let call = match sharing {
        Sharing::Replicated => comm.all_reduce_in_place(buffer, op),
        Sharing::Sharded => comm.reduce_scatter_in_place(buffer, op),
    };
    let pending = call
        .named(name)
        .start()
        .map_err(|Failed { error, .. }| error)?;
    Ok(pending.map(Contents::from))
}
