//! A thousand small operations: the host's time to queue them, and the time until the device has done them.

#[cfg(feature = "vulkan")]
use crate::native::Chain;
use crate::{Wanted, median_us};
use anyhow::Result;
use marquetry::shader::{Access, KernelBuilder, Type};
use marquetry::{Argument, DType, Device, Kernel, Step, Tensor};

const COUNT: usize = 1000;
const ROUNDS: usize = 31;
const LENGTH: usize = 1024;
const WORKGROUP: u32 = 256;

/// Measures some work, and prints a row.
fn row(device: &Device, name: &str, work: impl Fn() -> Result<()>) -> Result<()> {
    let queued = median_us(device, ROUNDS, &work)?;
    let done = median_us(device, ROUNDS, || {
        work()?;
        Ok(device.synchronize()?)
    })?;
    println!("{name:<34} {queued:>8.1} {done:>12.1}");
    Ok(())
}

/// Applies an operation a thousand times. Every result is needed.
fn chain(x: &Tensor, link: impl Fn(&Tensor) -> marquetry::Result<Tensor>) -> marquetry::Result<Tensor> {
    (0..COUNT).try_fold(x.clone(), |x, _| {
        let y = link(&x)?;
        y.realize()?;
        Ok(y)
    })
}

/// Writes a kernel that adds 1 to the first `count` numbers. An invocation computes four.
fn write_kernel(k: &KernelBuilder) {
    let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::F32, Access::Write));
    let count = k.named_parameter("count", Type::U32);
    let first = k.global_index() * 4;
    for i in 0..4 {
        k.when((first + i).lt(count), || y.store(first + i, x.load(first + i) + 1.0));
    }
}

/// Captures a thousand launches of the kernel.
fn step(device: &Device) -> Result<Step> {
    let kernel = Kernel::build("add_one", device, WORKGROUP, write_kernel)?;
    Ok(device.capture(|args| {
        let x = args.input("x", LENGTH, DType::F32)?;
        let link = |x: &Tensor| {
            let arguments = [Argument::from(x), Argument::output(LENGTH), (LENGTH as u32).into()];
            kernel.launch(1, arguments).map(|[y]| y)
        };
        Ok([("y", chain(&x, link)?)])
    })?)
}

/// Prints the rows of a thousand operations.
pub fn print(device: &Device, wanted: &Wanted) -> Result<()> {
    println!("{:<34} {:>8} {:>12}", "a thousand of", "queued", "done");
    let (x, bias) = (Tensor::rand(0f32, 1.0, LENGTH, device)?, Tensor::rand(0f32, 1.0, LENGTH, device)?);
    let matrix = Tensor::randn(0f32, 0.125, (64, 64), device)?;
    let add = |x: &Tensor| x.add(1.0);
    let row = |name: &str, work: &dyn Fn() -> Result<()>| {
        if wanted.has(name) { row(device, name, work) } else { Ok(()) }
    };
    row("links tanh(x + b)", &|| Ok((0..COUNT).try_fold(x.clone(), |x, _| x.add(&bias)?.tanh())?.realize()?))?;
    row("dependent kernels", &|| Ok(chain(&x, add).map(drop)?))?;
    row("independent kernels", &|| {
        // What is dropped is used again, so all are kept.
        let results: marquetry::Result<Vec<Tensor>> = (0..COUNT)
            .map(|_| {
                let y = x.add(1.0)?;
                y.realize()?;
                Ok(y)
            })
            .collect();
        results?;
        Ok(())
    })?;
    row("products of 64x64", &|| Ok(chain(&matrix, |x| x.matmul(&matrix)).map(drop)?))?;
    let read = "one operation and its bytes read";
    if wanted.has(read) {
        let number = Tensor::zeros(1, DType::F32, device)?;
        let time = median_us(device, 301, || Ok(number.add(1.0)?.to_vec::<f32>().map(drop)?))?;
        println!("{read:<34} {:>8} {time:>12.1}", "");
    }
    if wanted.has("step") {
        let captured = device.capture(|args| Ok([("y", chain(&args.input("x", LENGTH, DType::F32)?, add)?)]))?;
        row("step of dependent kernels", &|| Ok(captured.run([("x", (&x).into())]).map(drop)?))?;
        let captured = step(device)?;
        let run = || Ok(captured.run([("x", (&x).into())]).map(drop)?);
        row("step of an own kernel", &run)?;
        #[cfg(feature = "vulkan")]
        if device.info().backend == marquetry::BackendKind::Vulkan {
            beside_native(device, &run)?;
        }
    }
    Ok(())
}

/// Runs the step and the same dispatches by bare calls in turn, and prints both.
#[cfg(feature = "vulkan")]
fn beside_native(device: &Device, run: &dyn Fn() -> Result<()>) -> Result<()> {
    let k = KernelBuilder::new("add_one", Kernel::target(device), WORKGROUP);
    write_kernel(&k);
    let kernel = k.finish()?;
    let mut native = Chain::new(&device.info().name, kernel.spirv()?, COUNT, 4 * LENGTH as u64, LENGTH as u32)?;
    let (mut queued, mut done, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..=ROUNDS {
        let [submitted, ran] = native.run()?;
        queued.push(submitted);
        done.push(ran);
        ours.push(median_us(device, 1, || {
            run()?;
            Ok(device.synchronize()?)
        })?);
    }
    let [queued, done, ours] = [queued, done, ours].map(crate::median);
    println!("{:<34} {queued:>8.1} {done:>12.1}", "the same by bare calls");
    println!("{:<34} {:>8} {ours:>12.1} {:.3}", "the step, in turn with them", "", ours / done);
    Ok(())
}
