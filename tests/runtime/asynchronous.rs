//! Calls that do not block.

use crate::capture::message;
use marquetry::{DType, Device, Error, Result, Tensor};
use pollster::block_on;
use std::time::Instant;

on_each_device! {
    kernels_are_compiled_elsewhere
    what_is_captured_later_is_the_same
    all_work_has_run_when_a_wait_ends
    a_profile_ends_with_its_future
    elements_arrive_without_blocking
    captures_refuse_calls_that_wait
}

/// Polls a future once.
fn is_pending<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
}

fn kernels_are_compiled_elsewhere(device: &Device) -> Result<()> {
    // Powers that no other test has.
    let x = Tensor::new([1f32, 4.0], device)?;
    let work = || Ok([x.powf(0.8125)?.sum(0)?, x.powf(0.6875)?.cumsum(0)?]);
    let mut told = Vec::new();
    let mut warming = Box::pin(device.warm_up_async(work, |done, all| told.push((done, all))));
    assert!(is_pending(warming.as_mut()), "compiling takes a while");
    block_on(warming)?;
    let all = told.len();
    assert!(all >= 2 && told == (1..=all).map(|done| (done, all)).collect::<Vec<_>>(), "{told:?}");
    let before = device.stats().compiles;
    for tensor in work()? {
        tensor.to_vec::<f32>()?;
    }
    assert_eq!(device.stats().compiles, before);
    // There is nothing left to compile.
    block_on(device.warm_up_async(work, |_, _| panic!("all is known")))
}

fn what_is_captured_later_is_the_same(device: &Device) -> Result<()> {
    let step = block_on(device.capture_async(|args| {
        let x = args.input("x", 2, DType::F32)?;
        let sum = args.state("sum", &Tensor::new([1f32, 2.0], device)?)?.add(&x)?;
        args.update("sum", sum.clone())?;
        Ok([("y", sum.powf(1.1875)?), ("sum", sum)])
    }))?;
    let x = Tensor::new([1f32, 2.0], device)?;
    for expected in [[2f32, 4.0], [3.0, 6.0]] {
        let outputs = step.run([("x", (&x).into())])?;
        assert_eq!(outputs.get("sum")?.to_vec::<f32>()?, expected);
        let powers = Tensor::new(expected, device)?.powf(1.1875)?.to_vec::<f32>()?;
        assert_eq!(outputs.get("y")?.to_vec::<f32>()?, powers);
    }
    Ok(())
}

fn all_work_has_run_when_a_wait_ends(device: &Device) -> Result<()> {
    let x = Tensor::rand(0f32, 1.0, (512, 512), device)?;
    // Recording takes a small part of the time.
    let time = |wait: &dyn Fn() -> Result<()>| {
        device.synchronize()?;
        let start = Instant::now();
        let mut product = x.clone();
        for _ in 0..8 {
            product = product.matmul(&x)?;
            product.realize()?;
        }
        wait()?;
        Ok(start.elapsed())
    };
    time(&|| device.synchronize())?;
    let blocking = time(&|| device.synchronize())?.min(time(&|| device.synchronize())?);
    let awaited = time(&|| block_on(device.synchronize_async()))?;
    assert!(awaited > blocking / 3, "it took {awaited:?}, and {blocking:?} if it blocked");
    Ok(())
}

fn a_profile_ends_with_its_future(device: &Device) -> Result<()> {
    let x = Tensor::rand(0f32, 1.0, (64, 64), device)?;
    let work = async { x.matmul(&x)?.to_vec_async::<f32>().await };
    let (elements, profile) = block_on(device.profile_async(work))?;
    assert_eq!(elements?.len(), 64 * 64);
    assert!(profile.commands.iter().any(|command| command.name.contains("matmul")), "{profile}");
    // Whoever drops the future ends the profile.
    let mut abandoned = Box::pin(device.profile_async(std::future::pending::<()>()));
    assert!(is_pending(abandoned.as_mut()));
    assert!(message(device.profile(|| ())).contains("profiles do not nest"));
    drop(abandoned);
    let (sum, profile) = device.profile(|| x.sum_all()?.to_scalar::<f32>())?;
    assert!(sum? > 0.0 && !profile.commands.is_empty());
    Ok(())
}

fn elements_arrive_without_blocking(device: &Device) -> Result<()> {
    let x = Tensor::arange(1u32, 5, device)?;
    block_on(async {
        assert_eq!(x.sum_all()?.to_scalar_async::<u32>().await?, 10);
        let wrong = x.to_scalar_async::<u32>().await;
        assert!(message(wrong).contains("to_scalar_async: takes a tensor of one element"));
        assert!(matches!(x.to_scalar_async::<f32>().await, Err(Error::InvalidArgument { .. })));
        let one = x.sum_all()?.to_scalar_async::<f32>().await;
        assert!(matches!(one, Err(Error::ElementType { op: "to_scalar_async", .. })));
        for other in ["vulkan", "webgpu", "level-zero"] {
            let other = other.parse::<Device>()?;
            let there = x.reshape((2, 2))?.t()?.to_device_async(&other).await?;
            assert_eq!(there.to_vec_async::<u32>().await?, [1, 3, 2, 4]);
            let empty = x.narrow(0, 0, 0)?.to_device_async(&other).await?;
            assert_eq!(empty.dims(), [0]);
        }
        Ok(())
    })
}

fn captures_refuse_calls_that_wait(device: &Device) -> Result<()> {
    type Call = fn(&Device, &Tensor) -> Result<()>;
    let calls: [(&str, Call); 6] = [
        ("to_scalar_async", |_, x| block_on(x.sum_all()?.to_scalar_async::<f32>()).map(drop)),
        ("nonzero_async", |_, x| block_on(x.nonzero_async()).map(drop)),
        ("synchronize_async", |device, _| block_on(device.synchronize_async())),
        ("profile_async", |device, _| block_on(device.profile_async(async {})).map(drop)),
        ("warm_up_async", |device, x| block_on(device.warm_up_async(|| Ok([x.exp()?]), |_, _| ()))),
        ("capture_async", |device, x| block_on(device.capture_async(|_| Ok([("x", x.exp()?)]))).map(drop)),
    ];
    for (call, work) in calls {
        let captured = device.capture(|args| {
            let x = args.input("x", 4, DType::F32)?;
            work(device, &x)?;
            Ok([("x", x)])
        });
        let message = message(captured);
        assert!(message.contains(&format!("{call}: ")) && message.contains("captur"), "{call}: {message}");
    }
    Ok(())
}
