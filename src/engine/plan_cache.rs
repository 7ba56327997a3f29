//! [`PlanCache`]: the launches that a device has planned. The same call with the same shapes costs a look-up.

use super::kernel_cache::CompiledKernel;
use crate::kernels::Family;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::any::{Any, TypeId};
use std::sync::Arc;

/// The most plans of a family. Sizes that grow with each call, such as the length of a text, make new plans without
/// end.
const MAX_PLANS: usize = 4096;

/// Everything that a plan depends on, as numbers: the operation, dtypes, shapes and strides.
pub(crate) type PlanKey = SmallVec<[u64; 64]>;

/// A launch without its buffers. Some of its parameters differ from run to run, such as offsets.
pub(crate) struct Plan<F: Family> {
    pub kernel: F,
    pub parameters: F::Host,
    /// The number of workgroups.
    pub groups: usize,
    /// The kernel for buffers that can be bound, and the size of the dispatch.
    pub compiled: CompiledKernel,
    pub grid: [u32; 3],
    /// An estimate of the products or elements of `f32` that it adds up.
    pub products: u64,
}

type Plans = FxHashMap<PlanKey, Arc<dyn Any + Send + Sync>>;

/// Plans, by the type of the kernel's configuration.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: Mutex<FxHashMap<TypeId, Plans>>,
}

impl PlanCache {
    /// Returns the plan of a key, if there is one.
    pub fn find<F: Family + Send + Sync + 'static>(&self, key: &PlanKey) -> Option<Arc<Plan<F>>>
    where
        F::Host: Send + Sync,
    {
        let plan = self.plans.lock().get(&TypeId::of::<F>())?.get(key)?.clone();
        Arc::downcast(plan).ok()
    }

    /// Keeps a plan, and returns it.
    pub fn insert<F: Family + Send + Sync + 'static>(&self, key: PlanKey, plan: Plan<F>) -> Arc<Plan<F>>
    where
        F::Host: Send + Sync,
    {
        let plan = Arc::new(plan);
        let mut plans = self.plans.lock();
        let plans = plans.entry(TypeId::of::<F>()).or_default();
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        plan
    }
}
