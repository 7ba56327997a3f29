//! Threads that share tensors and a device, in many orders: see `src/base/lock.rs`.
//!
//! The device is the stream's model, which computes nothing. A test fails if threads wait for each other, or if
//! something is launched more often than it may be.

use crate::backend::info::DeviceKind;
use crate::engine::stream::tests::Lazy;
use crate::nn::{KvCache, KvCacheConfig};
use crate::{AttentionConfig, DType, Device, Result, Tensor};
use shuttle::scheduler::RandomScheduler;
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;

/// The stack of a thread, in bytes. Code that is not optimised takes more than the 32 KiB of shuttle's default.
const STACK: usize = 1 << 18;

/// Tries `test` on a new device for each order of its threads.
fn in_many_orders(test: impl Fn(&Device) -> Result<()> + Send + Sync + 'static) {
    let full = std::env::var("MARQUETRY_TEST_TIER").is_ok_and(|tier| tier == "full");
    in_orders(if full { 2000 } else { 600 }, |_| (), test);
}

/// Tries `test` in so many orders. `change` makes the device a particular one.
fn in_orders(
    orders: usize,
    change: impl Fn(&mut Lazy) + Send + Sync + 'static,
    test: impl Fn(&Device) -> Result<()> + Send + Sync + 'static,
) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    shuttle::Runner::new(RandomScheduler::new(orders), config).run(move || {
        let mut lazy = Lazy::new(DeviceKind::Discrete, 0);
        change(&mut lazy);
        let device = Device::of_model(Box::new(lazy));
        test(&device).unwrap();
        device.synchronize().unwrap();
        assert_eq!(device.memory_stats().in_use, 0, "all tensors are gone");
    });
}

/// Starts a thread that computes a tensor, and drops it.
fn realize(tensor: Tensor) -> JoinHandle<()> {
    thread::spawn(move || tensor.realize().unwrap())
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Threads upload beside kernels, use what they have uploaded, and drop it. The model panics if a buffer is freed or
/// written while a copy uses it.
#[test]
fn threads_upload_beside_kernels() {
    let copies = |lazy: &mut Lazy| {
        lazy.info.unified_memory = false;
        lazy.copy_queue = Some(Arc::default());
    };
    in_orders(200, copies, |device| {
        let upload = |device: Device| {
            thread::spawn(move || {
                // More than what goes with the kernels.
                let numbers = vec![1f32; (2 << 20) / 4 + 1];
                let x = Tensor::from_slice(&numbers, numbers.len(), &device).unwrap();
                x.add(1.0).unwrap().realize().unwrap();
                x.write_from(&numbers).unwrap();
                device.trim().unwrap();
            })
        };
        join([upload(device.clone()), upload(device.clone())]);
        Ok(())
    });
}

fn input(device: &Device) -> Result<Tensor> {
    Tensor::from_slice(&[1f32; 64], (8, 8), device)
}

/// Expressions over each other are computed by several threads. None is computed a third time.
#[test]
fn threads_compute_expressions_of_one_graph() {
    in_many_orders(|device| {
        let x = input(device)?;
        let y = x.add(1.0)?.exp()?;
        let (z, w) = (y.mul(&x)?.tanh()?, y.add(&x)?.sin()?);
        let before = device.stats().launches;
        join([realize(z), realize(w), realize(y)]);
        let launches = device.stats().launches - before;
        assert!((2..=4).contains(&launches), "{launches} launches");
        Ok(())
    });
}

/// A product, and expressions that may become its epilogue: it runs once.
#[test]
fn threads_compute_epilogues_of_one_product() {
    in_many_orders(|device| {
        let x = input(device)?;
        let product = x.matmul(&x)?;
        let (a, b) = (product.add(&x)?, product.relu()?.add(&x)?);
        let before = device.stats().launches;
        let (both, launches) = (a.add(&b)?, || device.stats().launches - before);
        join([realize(a), realize(b), realize(both), realize(product.clone())]);
        // The product, with one epilogue or none, and an elementwise kernel for each of the others at most.
        assert!((1..=4).contains(&launches()), "{} launches", launches());
        let done = launches();
        product.realize()?;
        assert_eq!(launches(), done, "it is kept");
        Ok(())
    });
}

/// A product's kernel stores an expression over it, while another thread computes that expression.
#[test]
fn threads_compute_what_an_epilogue_stores() {
    in_many_orders(|device| {
        let [x, y, z] = [input(device)?, input(device)?, input(device)?];
        let stored = x.matmul(&x)?.add(&x)?.mul(&y)?.sub(&z)?;
        let above = stored.exp()?;
        let before = device.stats().launches;
        join([realize(above), realize(stored)]);
        let launches = device.stats().launches - before;
        assert!((1..=2).contains(&launches), "{launches} launches");
        Ok(())
    });
}

/// Threads that need each other's results in both directions.
#[test]
fn threads_need_each_other() {
    in_many_orders(|device| {
        let x = input(device)?;
        let (a, b) = (x.add(1.0)?, x.mul(2.0)?);
        let (sums, norms) = (a.add(&b)?.sum_keepdim(1)?, b.sub(&a)?.softmax(-1)?);
        let (c, d) = (sums.mul(&norms)?, norms.add(&sums)?);
        join([realize(c), realize(d), realize(sums), realize(norms), realize(a), realize(b)]);
        Ok(())
    });
}

/// Recording, submitting, waiting, allocating and freeing at once. A kernel is compiled once.
#[test]
fn threads_record_and_wait() {
    in_many_orders(|device| {
        let work = |seed: usize| {
            let device = device.clone();
            thread::spawn(move || {
                for i in 0..3 {
                    let x = Tensor::from_slice(&vec![1f32; 16 << ((seed + i) % 3)], 16 << ((seed + i) % 3), &device)
                        .unwrap();
                    let y = x.add(1.0).unwrap();
                    y.realize().unwrap();
                    if (seed + i) % 2 == 0 {
                        device.synchronize().unwrap();
                    }
                }
                device.trim().unwrap();
            })
        };
        join((0..3).map(work));
        assert_eq!(device.stats().compiles, 1);
        assert!(device.stats().launches == 9);
        Ok(())
    });
}

/// One step is run by several threads, beside other work, and dropped by the last of them.
#[test]
fn threads_run_a_step() {
    in_many_orders(|device| {
        let step = device.capture(|args| {
            let (x, n) = (args.input("x", (8, 8), DType::F32)?, args.input("n", (), DType::F32)?);
            Ok([("y", x.mul(&n)?)])
        })?;
        let step = Arc::new(step);
        let before = device.stats().launches;
        let work = |seed: usize| {
            let (step, device) = (step.clone(), device.clone());
            thread::spawn(move || {
                let x = input(&device).unwrap();
                let y = step.run([("x", (&x).into()), ("n", seed.into())]).unwrap().into_tensors().remove(0);
                y.add(&x).unwrap().realize().unwrap();
                device.synchronize().unwrap();
            })
        };
        let threads: Vec<_> = (0..3).map(work).collect();
        drop(step);
        join(threads);
        // The number, the product, and the sum. The driver copies the input and the output.
        assert_eq!(device.stats().launches - before, 3 * 3);
        Ok(())
    });
}

/// A thread announces tokens, and others run a step over the cache. No tokens are written twice, and no thread waits
/// for another one forever.
#[test]
fn threads_share_a_cache() {
    in_orders(
        500,
        |_| (),
        |device| {
            let mut cache = KvCache::new(&KvCacheConfig::new(1, 1, 4).length(8), device)?;
            let sequence = cache.add();
            cache.extend(&[(sequence, 1)])?;
            let step = device.capture(|args| {
                let x = args.input("x", (1, 1, 4), DType::F32)?;
                Ok([("y", cache.attend(0, [&x, &x, &x], None, &AttentionConfig::default())?)])
            })?;
            let (step, x) = (Arc::new(step), Tensor::ones((1, 1, 4), DType::F32, device)?);
            x.realize()?;
            let announces = thread::spawn(move || {
                for length in [0, 2] {
                    cache.rewind(sequence, length).unwrap();
                    cache.extend(&[(sequence, 2 - length.min(1))]).unwrap();
                }
            });
            let run = |_| {
                let (step, x) = (step.clone(), x.clone());
                thread::spawn(move || u32::from(step.run([("x", (&x).into())]).is_ok()))
            };
            let runs: Vec<_> = (0..4).map(run).collect();
            drop((step, x));
            announces.join().unwrap();
            let written: u32 = runs.into_iter().map(|run| run.join().unwrap()).sum();
            // One token each of the first and of the last announcement.
            assert!(written <= 2);
            Ok(())
        },
    );
}
