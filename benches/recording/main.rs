//! How long the host takes to record an operation, on the best device or the one of `MARQUETRY_DEVICE`.
//!
//! `cargo bench --bench recording` measures all rows, `-- NAME..` those whose names contain one. Each figure is a
//! median over rounds, in nanoseconds per operation. The device is idle before a round, and a round ends when the last
//! operation has been recorded: no more batches are submitted than may be in flight. `all` is over 31 rounds of 200
//! operations. `unsubmitted` is over 301 rounds of 31 operations, which are too few for a batch: it is what the
//! operation takes without the backend, which encodes batches. The rows of a step are per run of 1,000 dependent
//! kernels: queueing it, and until the device has done it.

use marquetry::{AttentionConfig, ConvConfig, DType, Device, Result, Tensor};
use std::time::Instant;

type Operation<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;

/// How many times, and how many operations each time.
struct Rounds {
    rounds: usize,
    operations: usize,
}

const ALL: Rounds = Rounds { rounds: 31, operations: 200 };
const UNSUBMITTED: Rounds = Rounds { rounds: 301, operations: 31 };

impl Rounds {
    /// Returns the median time of an operation in nanoseconds. `round` records as many operations as it is told.
    fn measure(&self, device: &Device, mut round: impl FnMut(usize) -> Result<()>) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..=self.rounds {
            device.synchronize()?;
            let start = Instant::now();
            round(self.operations)?;
            times.push(start.elapsed().as_nanos() as f64 / self.operations as f64);
        }
        // The first round compiles the kernel.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// Prints a row: both medians of `operation`.
fn print(name: &str, device: &Device, operation: impl Fn() -> Result<Tensor>) -> Result<()> {
    let round = |operations| (0..operations).try_for_each(|_| operation()?.realize());
    let all = ALL.measure(device, round)?;
    let unsubmitted = UNSUBMITTED.measure(device, |operations| {
        let before = device.stats().submissions;
        round(operations)?;
        assert_eq!(device.stats().submissions, before, "{name}: a round is a batch");
        Ok(())
    })?;
    println!("{name:<28} {all:>8.0} {unsubmitted:>12.0}");
    Ok(())
}

/// Prints how long a run of a captured step takes, and the same kernels without a capture.
fn print_step(device: &Device) -> Result<()> {
    const KERNELS: usize = 1000;
    let chain = |x: &Tensor| {
        (0..KERNELS).try_fold(x.clone(), |x, _| {
            let x = x.add(1.0)?;
            x.realize()?;
            Ok(x)
        })
    };
    let step = device.capture(|args| Ok([("x", chain(&args.input("x", 1024, DType::F32)?)?)]))?;
    let x = Tensor::rand(0f32, 1.0, 1024, device)?;
    let run = || step.run([("x", (&x).into())]).map(drop);
    let rounds = Rounds { rounds: 31, operations: 1 };
    let row = |name: &str, run: &dyn Fn() -> Result<()>| -> Result<()> {
        let queued = rounds.measure(device, |_| run())?;
        let done = rounds.measure(device, |_| run().and_then(|()| device.synchronize()))?;
        println!("{name:<28} {queued:>8.0} queued {done:>8.0} done");
        Ok(())
    };
    row("a step of 1,000 kernels", &run)?;
    row("1,000 kernels", &|| chain(&x).map(drop))
}

fn main() -> Result<()> {
    let device = Device::best()?;
    println!("{device}\n{:<28} {:>8} {:>12}", "ns per operation", "all", "unsubmitted");
    let vector = Tensor::rand(0f32, 1.0, 64, &device)?;
    let matrix = Tensor::rand(0f32, 1.0, (8, 8), &device)?;
    let turned = Tensor::rand(0f32, 1.0, (8, 8, 3), &device)?.transpose(0, 2)?;
    let heads = Tensor::rand(0f32, 1.0, (1, 2, 8, 32), &device)?;
    let image = Tensor::rand(0f32, 1.0, (1, 4, 8, 8), &device)?;
    let filters = Tensor::rand(0f32, 1.0, (4, 4, 3, 3), &device)?;
    let (attention, conv) = (AttentionConfig::default(), ConvConfig::default());
    let ids = Tensor::zeros(8, DType::U32, &device)?;
    let sixteen = || (0..16).try_fold(vector.clone(), |sum, _| sum.add(&vector));
    let rows: [(&str, Operation); 10] = [
        ("sixteen fused additions", Box::new(sixteen)),
        ("add of a number", Box::new(|| vector.add(1.0))),
        ("chain of four", Box::new(|| vector.add(1.0)?.mul(&vector)?.gelu()?.sub(&vector))),
        ("copy of a permuted view", Box::new(|| turned.contiguous())),
        ("a matrix product", Box::new(|| matrix.matmul(&matrix))),
        ("matrix product with a bias", Box::new(|| matrix.matmul(&matrix)?.add(&matrix))),
        ("softmax", Box::new(|| matrix.softmax(-1))),
        ("index_select", Box::new(|| matrix.index_select(&ids, 0))),
        ("attention", Box::new(|| heads.scaled_dot_product_attention(&heads, &heads, &attention))),
        ("conv2d", Box::new(|| image.conv2d(&filters, None, &conv))),
    ];
    let filters: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let (mut x, bias) = (Tensor::zeros(1024, DType::F32, &device)?, Tensor::rand(0f32, 1.0, 1024, &device)?);
    let link = "a link tanh(x + b)";
    if wanted(link) {
        let links = Rounds { rounds: 31, operations: 1000 };
        let time = links.measure(&device, |operations| {
            for _ in 0..operations {
                x = x.add(&bias)?.tanh()?;
            }
            x.realize()
        })?;
        println!("{link:<28} {time:>8.0}");
    }
    if wanted("step") {
        print_step(&device)?;
    }
    let mut rows = rows.into_iter().filter(|(name, _)| wanted(name));
    rows.try_for_each(|(name, operation)| print(name, &device, operation))
}
