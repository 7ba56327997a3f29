//! [`PlanCache`]: the launches that a device has planned. The same call with the same shapes costs a look-up.

use super::kernel_cache::OwnKernel;
use crate::base::lock::Mutex;
use crate::kernels::parameters::Words;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::any::Any;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The most plans. Sizes that grow with each call, such as the length of a text, make new plans without end.
const MAX_PLANS: usize = 4096;

thread_local! {
    /// The memory of the last key.
    static MEMORY: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// What is planned.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlanKind {
    Elementwise,
    Product,
    Attention,
}

/// Everything that a plan depends on, as numbers: the operation, dtypes, shapes and strides.
#[derive(Default)]
pub(crate) struct PlanKey(Vec<u64>);

impl PlanKey {
    /// Returns a key with nothing but what is planned.
    pub fn new(kind: PlanKind) -> PlanKey {
        // While a thread ends, it may have no memory any more.
        let mut numbers = MEMORY.try_with(Cell::take).unwrap_or_default();
        numbers.clear();
        numbers.push(kind as u64);
        PlanKey(numbers)
    }
}

impl Deref for PlanKey {
    type Target = Vec<u64>;
    fn deref(&self) -> &Vec<u64> {
        &self.0
    }
}

impl DerefMut for PlanKey {
    fn deref_mut(&mut self) -> &mut Vec<u64> {
        &mut self.0
    }
}

impl Drop for PlanKey {
    fn drop(&mut self) {
        if self.0.capacity() > 0 {
            _ = MEMORY.try_with(|memory| memory.set(std::mem::take(&mut self.0)));
        }
    }
}

/// A launch without its buffers.
pub(crate) struct Plan<F> {
    pub kernel: F,
    /// The parameters. Some differ from run to run, such as offsets.
    pub words: Words,
    /// The places of those that differ, in the order in which they are passed.
    pub places: SmallVec<[u8; 16]>,
    /// The kernel for buffers that can be bound, and the size of the dispatch.
    pub own: Arc<OwnKernel>,
    pub grid: [u32; 3],
    /// An estimate of the products or elements of `f32` that it adds up.
    pub products: u64,
}

type Plans = FxHashMap<Box<[u64]>, Arc<dyn Any + Send + Sync>>;

/// Plans by their key.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: Mutex<Plans>,
}

impl PlanCache {
    /// Returns the plan of a key, if there is one. All plans of a kind have one type.
    pub fn find<P: Send + Sync + 'static>(&self, key: &PlanKey) -> Option<Arc<P>> {
        let plan = self.plans.lock().get(key.as_slice())?.clone();
        Arc::downcast(plan).ok()
    }

    /// Keeps a plan, and returns it.
    pub fn insert<P: Send + Sync + 'static>(&self, key: &PlanKey, plan: P) -> Arc<P> {
        let plan = Arc::new(plan);
        let mut plans = self.plans.lock();
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key.as_slice().into(), plan.clone());
        plan
    }
}
