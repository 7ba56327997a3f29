//! [`PlanCache`]: the launches that a device has planned. The same call with the same shapes costs a look-up.

use super::kernel_cache::OwnKernel;
use crate::base::lock::{Mutex, thread_local};
use crate::kernels::Work;
use crate::kernels::parameters::Words;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::Cell;
use std::hash::Hasher;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most plans. Sizes that grow with each call, such as the length of a text, make new plans without end.
const MAX_PLANS: usize = 4096;

/// Places for the plans that a thread has used last.
const PLACES: usize = 256;

thread_local! {
    /// The memory of the last key.
    static MEMORY: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };

    /// The plans that the thread has used last, each at the place that the hash of its key tells.
    static RECENT: Box<[Cell<Option<Recent>>]> = (0..PLACES).map(|_| Cell::new(None)).collect();
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
    pub work: Work,
}

type AnyPlan = Arc<dyn Any + Send + Sync>;

/// A plan that a thread has used.
struct Recent {
    /// The number of its cache.
    cache: u64,
    key: Box<[u64]>,
    plan: AnyPlan,
}

/// Plans by their key.
pub(crate) struct PlanCache {
    /// Each device has a cache, with a number of its own.
    number: u64,
    plans: Mutex<FxHashMap<Box<[u64]>, AnyPlan>>,
}

impl Default for PlanCache {
    fn default() -> PlanCache {
        static CACHES: AtomicU64 = AtomicU64::new(0);
        PlanCache { number: CACHES.fetch_add(1, Ordering::Relaxed), plans: Mutex::default() }
    }
}

impl PlanCache {
    /// Runs the plan of a key, or returns the key if there is no plan. All plans of a kind have one type.
    ///
    /// A thread finds the plans that it has used last without a lock, and without counting handles.
    pub fn run<P: 'static, T>(&self, key: PlanKey, run: impl FnOnce(&P) -> T) -> Result<T, PlanKey> {
        let mut hasher = FxHasher::default();
        key.iter().for_each(|&number| hasher.write_u64(number));
        let place = hasher.finish() as usize >> (usize::BITS - PLACES.ilog2());
        // Nobody else finds it meanwhile: the plan may run others.
        let recent = RECENT.try_with(|recent| recent[place].take()).ok().flatten();
        let recent = match recent.filter(|recent| recent.cache == self.number && *recent.key == **key) {
            Some(recent) => recent,
            None => {
                let Some(plan) = self.plans.lock().get(key.as_slice()).cloned() else { return Err(key) };
                Recent { cache: self.number, key: key.as_slice().into(), plan }
            }
        };
        let Some(plan) = recent.plan.downcast_ref::<P>() else { return Err(key) };
        // Its memory serves the keys of other plans.
        drop(key);
        let result = run(plan);
        _ = RECENT.try_with(|recents| recents[place].set(Some(recent)));
        Ok(result)
    }

    /// Keeps a plan.
    pub fn insert<P: Send + Sync + 'static>(&self, key: &PlanKey, plan: P) {
        let mut plans = self.plans.lock();
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key.as_slice().into(), Arc::new(plan));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(numbers: impl IntoIterator<Item = u64>) -> PlanKey {
        let mut key = PlanKey::new(PlanKind::Product);
        key.extend(numbers);
        key
    }

    #[test]
    fn caches_know_only_their_own_plans() {
        let [one, other] = [PlanCache::default(), PlanCache::default()];
        let find = |cache: &PlanCache| cache.run(key([7]), |plan: &&str| *plan).ok();
        one.insert(&key([7]), "one");
        assert_eq!((find(&one), find(&other)), (Some("one"), None));
        other.insert(&key([7]), "other");
        for _ in 0..2 {
            assert_eq!((find(&one), find(&other)), (Some("one"), Some("other")));
        }
    }

    /// Many keys share a place, and a plan may run others meanwhile, itself too.
    #[test]
    fn every_plan_is_found_among_many() {
        let cache = PlanCache::default();
        let numbers = 0..3 * PLACES as u64;
        numbers.clone().for_each(|number| cache.insert(&key([number, 1]), number));
        let plan = |number| cache.run(key([number, 1]), |plan: &u64| *plan).ok();
        for number in numbers.clone().chain(numbers) {
            let found = cache.run(key([number, 1]), |outer: &u64| (*outer, plan(number), plan(number / 2)));
            assert_eq!(found.ok(), Some((number, Some(number), Some(number / 2))));
        }
        let missing = cache.run(key([1, 2, 3]), |_: &u64| ()).err();
        assert_eq!(missing.as_deref(), Some(&vec![PlanKind::Product as u64, 1, 2, 3]));
    }
}
