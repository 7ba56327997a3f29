//! Faults and leaks of the Level Zero backend.
//!
//! Each test starts this program again with a scenario and an environment, because faults are injected and leaks are
//! reported per process. The device is the test driver's. `through the loader` is the path of older drivers, with lists
//! and fences. `direct` is the path of newer drivers, with an in-order immediate list.

#[path = "level_zero_driver/test/child.rs"]
mod child;

use child::Child;
use libtest_mimic::{Arguments, Failed, Trial};
use marquetry::shader::{Access, Type};
use marquetry::{
    Argument, BackendKind, DType, Device, DeviceFilter, DeviceKind, Error, Kernel, MemoryKind, Result, Step, Tensor,
};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    if let Some(name) = child::scenario() {
        let scenario =
            SCENARIOS.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no scenario {name}"));
        (scenario.1)().unwrap_or_else(|error| panic!("{error}"));
        return ExitCode::SUCCESS;
    }
    libtest_mimic::run(&Arguments::from_args(), trials()).exit_code()
}

/// A scenario and its function.
type Scenario = (&'static str, fn() -> Result<()>);

const SCENARIOS: [Scenario; 14] = [
    ("every_family", every_family),
    ("memory_runs_out", memory_runs_out),
    ("memory_is_short_for_a_moment", memory_is_short_for_a_moment),
    ("a_build_fails", a_build_fails),
    ("the_device_is_lost", the_device_is_lost),
    ("memory_runs_out_in_a_step", memory_runs_out_in_a_step),
    ("the_device_is_lost_in_a_step", the_device_is_lost_in_a_step),
    ("memory_runs_out_in_a_transfer", memory_runs_out_in_a_transfer),
    ("the_device_is_lost_in_a_transfer", the_device_is_lost_in_a_transfer),
    ("the_device_is_slow", the_device_is_slow),
    ("two_devices", two_devices),
    ("a_discrete_device", a_discrete_device),
    ("why_unavailable", why_unavailable),
    ("count_compiles", count_compiles),
];

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add =
        |name: String, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| trials.push(Trial::test(name, test));
    for (path, start) in [("loader", Child::through_the_loader as fn(&'static str) -> Child), ("direct", Child::direct)]
    {
        let clean = move |name: &'static str, variables: &'static [(&'static str, &'static str)]| {
            let child = variables.iter().fold(start(name), |child, (name, value)| child.with(name, value));
            child.run()?.succeeds()?.leaves_nothing()
        };
        add(format!("{path}::nothing_is_left"), Box::new(move || clean("every_family", &[])));
        // The fifth is staging memory, for which there are more attempts.
        for pair in ["1,2", "2,3", "3,4", "4,5", "5,6,7"] {
            let child = move || start("memory_runs_out").with("OOM_AT", pair).run()?.succeeds()?.leaves_nothing();
            add(format!("{path}::memory_runs_out_at_{}", &pair[..1]), Box::new(child));
        }
        add(
            format!("{path}::memory_is_short_for_a_moment"),
            Box::new(move || clean("memory_is_short_for_a_moment", &[("OOM_AT", "3")])),
        );
        add(format!("{path}::a_build_fails"), Box::new(move || clean("a_build_fails", &[("BUILD_FAILURE_AT", "2")])));
        for number in ["1", "2", "3", "4"] {
            let child = move || start("the_device_is_lost").with("LOST_AT", number).run()?.succeeds()?.leaves_nothing();
            add(format!("{path}::the_device_is_lost_at_{number}"), Box::new(child));
        }
        for (name, pair) in ["1,2", "2,3", "3,4", "5,6", "7,8", "8,9", "9,10", "10,11"].into_iter().enumerate() {
            let child =
                move || start("memory_runs_out_in_a_step").with("OOM_AT", pair).run()?.succeeds()?.leaves_nothing();
            add(format!("{path}::memory_runs_out_in_a_step_{name}"), Box::new(child));
        }
        for number in ["1", "2", "3", "4"] {
            let child = move || {
                start("the_device_is_lost_in_a_step").with("LOST_AT", number).run()?.succeeds()?.leaves_nothing()
            };
            add(format!("{path}::the_device_is_lost_in_a_step_at_{number}"), Box::new(child));
        }
        // Staging memory does with less, and waits for the device. So only several refusals in a row are felt.
        for first in [1, 2, 3, 4, 6, 9] {
            let numbers: Vec<String> = (first..first + 6).map(|number: u32| number.to_string()).collect();
            let child = move || {
                let child = start("memory_runs_out_in_a_transfer").with("DISCRETE", "1");
                child.with("OOM_AT", &numbers.join(",")).run()?.succeeds()?.leaves_nothing()
            };
            add(format!("{path}::memory_runs_out_in_a_transfer_from_{first}"), Box::new(child));
        }
        for number in ["1", "2", "4", "6"] {
            let child = move || {
                let child = start("the_device_is_lost_in_a_transfer").with("DISCRETE", "1");
                child.with("LOST_AT", number).run()?.succeeds()?.leaves_nothing()
            };
            add(format!("{path}::the_device_is_lost_in_a_transfer_at_{number}"), Box::new(child));
        }
        add(
            format!("{path}::the_device_is_slow"),
            Box::new(move || clean("the_device_is_slow", &[("SLOW_MS", "800")])),
        );
        add(format!("{path}::two_devices"), Box::new(move || clean("two_devices", &[("DEVICES", "2")])));
        add(format!("{path}::a_discrete_device"), Box::new(move || clean("a_discrete_device", &[("DISCRETE", "1")])));
        add(format!("{path}::kernels_on_disk"), Box::new(move || kernels_on_disk(start)));
    }
    add(
        "unavailable::no_such_library".into(),
        Box::new(|| unavailable_from("/nowhere/libze.so", &["/nowhere/libze.so", "MARQUETRY_LEVEL_ZERO_LIBRARY"])),
    );
    add("unavailable::another_library".into(), Box::new(|| unavailable_from("libm.so.6", &["zeInit", "libm.so.6"])));
    add("unavailable::no_loader".into(), Box::new(no_loader));
    add("unavailable::old_library".into(), Box::new(old_library));
    add(
        "unavailable::old_driver".into(),
        Box::new(|| {
            let child = Child::direct("why_unavailable").with("API", "1.0");
            says(child, &["1.0"])
        }),
    );
    add(
        "unavailable::no_driver".into(),
        Box::new(|| {
            let mut child = Child::through_the_loader("why_unavailable");
            child.command.env("ZE_ENABLE_ALT_DRIVERS", "/nowhere.so");
            says(child, &["zeInit"])
        }),
    );
    for (path, start) in [("loader", Child::through_the_loader as fn(&'static str) -> Child), ("direct", Child::direct)]
    {
        add(
            format!("unavailable::no_devices_{path}"),
            Box::new(move || says(start("why_unavailable").with("DEVICES", "0"), &["no device"])),
        );
    }
    trials
}

fn device() -> Result<Device> {
    Device::level_zero(0)
}

/// Runs some launches of several kernels, and checks the known result.
fn compute(device: &Device) -> Result<()> {
    let x = Tensor::from_vec((0..6000).map(|i| (i % 7) as f32).collect(), (60, 100), device)?
        .to_memory(MemoryKind::Device)?;
    let squares = x.matmul(&x.t()?)?;
    let total = squares.sum_all()?.to_scalar::<f32>()?;
    // The sum over all pairs of rows equals the sum of the squared column sums.
    let column = |j: usize| (0..60).map(|i| ((100 * i + j) % 7) as f32).sum::<f32>();
    assert_eq!(total, (0..100).map(|j| column(j) * column(j)).sum::<f32>());
    assert_eq!((x + 1.0)?.max(1)?.to_vec::<f32>()?, [7.0; 60]);
    Ok(())
}

fn every_family() -> Result<()> {
    let device = device()?;
    compute(&device)?;
    let x = Tensor::randn(0f32, 1.0, (8, 300), &device)?;
    let weight = Tensor::ones(300, DType::F32, &device)?;
    x.layer_norm(&weight, &weight, 1e-5)?.softmax(-1)?.to_vec::<f32>()?;
    Tensor::cat(&[&x, &x], 0)?
        .index_select(&Tensor::new([3u32, 1], &device)?, 0)?
        .to_dtype(DType::F16)?
        .to_vec::<half::f16>()?;
    for kind in [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host] {
        let there = x.to_memory(kind)?.slice_assign((2..5, 10..290), &x.narrow(0, 0, 1)?.narrow(1, 7, 280)?)?;
        there.argmax(1)?.to_vec::<u32>()?;
        pollster::block_on(there.to_vec_async::<f32>())?;
    }
    // Boxes with more than one dimension, which the driver copies.
    let dense = Tensor::zeros((6, 40, 200), DType::F32, &device)?;
    let part = Tensor::ones((3, 20, 100), DType::F32, &device)?;
    let assigned = dense.slice_assign((1..4, 10..30, 50..150), &part)?;
    assert_eq!(assigned.sum_all()?.to_scalar::<f32>()?, 6000.0);
    assert_eq!(assigned.narrow(0, 1, 2)?.narrow(1, 10, 20)?.narrow(2, 50, 100)?.to_vec::<f32>()?, [1.0; 4000]);
    // A kernel from the application.
    let kernel = Kernel::build("double", &device, 64, |k| {
        let (x, y) = (k.buffer("x", Type::F32, Access::Read), k.buffer("y", Type::F32, Access::Write));
        y.store(k.global_index(), x.load(k.global_index()) * 2.0);
    })?;
    let [doubled] = kernel.launch(1, [Argument::from(&weight), Argument::output(64)])?;
    assert_eq!(doubled.to_vec::<f32>()?, [2.0; 64]);
    let (result, profile) = device.profile(|| compute(&device))?;
    result?;
    // Its kernels, and a copy of the result if the host does not read it in place.
    let read = usize::from(!device.info().unified_memory);
    assert!(profile.commands.len() >= 4 + read, "{profile}");
    // A captured step, dropped while it runs.
    let step = counting_step(&device)?;
    let large = Tensor::ones((300, 40), DType::F32, &device)?;
    let outputs = (0..5).map(|_| step.run([("x", (&large).into()), ("n", 2.into())])).collect::<Result<Vec<_>>>()?;
    drop(step);
    assert_eq!(outputs[3].get("count")?.to_vec::<f32>()?, [4.0]);
    assert_eq!(outputs[4].get("y")?.to_vec::<f32>()?, [80.0; 300]);
    // Work that no one waits for.
    (x + 1.0)?.sum_all()?.realize()
}

/// A step that sums up the rows of `n x`, and counts its runs.
fn counting_step(device: &Device) -> Result<Step> {
    device.capture(|args| {
        let (x, n) = (args.input("x", (300, 40), DType::F32)?, args.input("n", (), DType::F32)?);
        let count = args.state("count", &Tensor::zeros(1, DType::F32, device)?)?.add(1.0)?;
        args.update("count", count.clone())?;
        let y = x.mul(&n)?;
        y.realize()?;
        Ok([("y", y.sum(1)?), ("count", count)])
    })
}

/// Memory runs out while a step is captured, or in one of its runs. All other runs are right, and none is counted that
/// has failed.
fn memory_runs_out_in_a_step() -> Result<()> {
    let device = device()?;
    let (mut failures, mut runs, mut step) = (0, 0, None);
    let mut held = Vec::new();
    for n in 1..12 {
        let mut attempt = || -> Result<()> {
            if step.is_none() {
                step = Some(counting_step(&device)?);
            }
            let Some(step) = &step else { return Ok(()) };
            let x = Tensor::full(1f32, (300, 40), &device)?;
            let outputs = step.run([("x", (&x).into()), ("n", n.into())])?;
            runs += 1;
            held.push((n, runs, outputs));
            Ok(())
        };
        match attempt() {
            Ok(()) => {}
            Err(Error::OutOfMemory { requested: 1.., limit: 1.., .. }) => failures += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(failures, 1, "of 11 attempts");
    for (n, run, outputs) in held {
        assert_eq!(outputs.get("y")?.to_vec::<f32>()?, [40.0 * n as f32; 300], "run {run}");
        assert_eq!(outputs.get("count")?.to_vec::<f32>()?, [run as f32]);
    }
    Ok(())
}

fn the_device_is_lost_in_a_step() -> Result<()> {
    let lost = device()?;
    let (mut step, mut kept) = (None, None);
    let mut work = || -> Result<()> {
        let step: &Step = step.insert(counting_step(&lost)?);
        let x = Tensor::full(1f32, (300, 40), &lost)?;
        let outputs = [1, 2, 3].map(|n| step.run([("x", (&x).into()), ("n", n.into())]));
        let outputs = outputs.into_iter().collect::<Result<Vec<_>>>()?;
        let y = kept.insert(outputs[2].get("y")?.clone());
        lost.synchronize()?;
        y.to_vec::<f32>().map(drop)
    };
    let error = (0..5).find_map(|_| work().err());
    assert!(matches!(error, Some(Error::DeviceLost { .. })), "{error:?}");
    if let Some(y) = &kept {
        assert!(matches!(y.to_vec::<f32>(), Err(Error::DeviceLost { .. })));
    }
    let anew = device()?;
    drop((step, kept, lost));
    let x = Tensor::full(1f32, (300, 40), &anew)?;
    let outputs = counting_step(&anew)?.run([("x", (&x).into()), ("n", 2.into())])?;
    assert_eq!(outputs.get("y")?.to_vec::<f32>()?, [80.0; 300]);
    Ok(())
}

fn memory_runs_out() -> Result<()> {
    let device = device()?;
    let outcomes: Vec<_> = (0..3).map(|_| compute(&device)).collect();
    let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(matches!(failed[..], [Error::OutOfMemory { requested: 1.., limit: 1.., .. }]), "{outcomes:?}");
    compute(&device)
}

/// Moves bytes to the device and back: in pieces, and small ones that share staging memory.
fn transfer(device: &Device) -> Result<()> {
    let bytes: Vec<u8> = (0..(9 << 20) + 1).map(|i| (i % 251) as u8).collect();
    let there = Tensor::from_slice(&bytes, bytes.len(), device)?;
    let small = (0..3).map(|i| Tensor::from_slice(&bytes[i..i + 1000], 1000, device));
    let small = small.collect::<Result<Vec<_>>>()?;
    let mut back = vec![0; bytes.len()];
    there.read_into(&mut back)?;
    assert!(back == bytes, "they come back as they went");
    for (i, x) in small.iter().enumerate() {
        assert!(x.to_vec::<u8>()? == bytes[i..i + 1000], "small upload {i}");
    }
    Ok(())
}

fn memory_runs_out_in_a_transfer() -> Result<()> {
    let device = device()?;
    let failed: Vec<Error> = (0..4).filter_map(|_| transfer(&device).err()).collect();
    // The first allocation is the tensor's, which cannot do with less. Later ones may.
    let first = std::env::var("LEVEL_ZERO_TEST_OOM_AT").is_ok_and(|numbers| numbers.starts_with("1,"));
    assert!(!first || !failed.is_empty(), "nothing failed");
    for error in failed {
        assert!(matches!(error, Error::OutOfMemory { requested: 1.., .. }), "{error}");
    }
    transfer(&device)
}

fn the_device_is_lost_in_a_transfer() -> Result<()> {
    let lost = device()?;
    let error = (0..3).find_map(|_| transfer(&lost).err());
    assert!(matches!(error, Some(Error::DeviceLost { .. })), "{error:?}");
    assert!(matches!(transfer(&lost), Err(Error::DeviceLost { .. })));
    drop(lost);
    transfer(&device()?)
}

fn memory_is_short_for_a_moment() -> Result<()> {
    // The backend frees cached memory, and the second attempt succeeds.
    compute(&device()?)
}

fn a_build_fails() -> Result<()> {
    let device = device()?;
    match compute(&device) {
        Err(Error::Kernel { kernel, message }) => {
            assert!(!kernel.is_empty() && message.contains("build failure"), "{kernel}: {message}");
        }
        other => panic!("{other:?}"),
    }
    compute(&device)
}

fn the_device_is_lost() -> Result<()> {
    let lost = device()?;
    let kept = Tensor::from_slice_in(&[1f32, 2.0], 2, MemoryKind::Device, &lost)?;
    let error = (0..5).find_map(|_| compute(&lost).err());
    assert!(matches!(error, Some(Error::DeviceLost { .. })), "{error:?}");
    for _ in 0..3 {
        assert!(matches!(kept.to_vec::<f32>(), Err(Error::DeviceLost { .. })));
        assert!(matches!(lost.synchronize(), Err(Error::DeviceLost { .. })));
        assert!(matches!(pollster::block_on((&kept + 1.0)?.to_vec_async::<f32>()), Err(Error::DeviceLost { .. })));
    }
    let anew = device()?;
    assert!(anew != lost);
    compute(&anew)?;
    drop((kept, lost));
    compute(&anew)
}

/// Returns the processor time of this process.
fn busy() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the process has a state");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // utime and stime, in hundredths of a second: see proc(5).
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number of ticks");
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

fn the_device_is_slow() -> Result<()> {
    let device = device()?;
    let x = Tensor::new([1f32, 2.0], &device)?.to_memory(MemoryKind::Device)?;
    // The first run compiles the kernel.
    assert_eq!((&x + 1.0)?.to_vec::<f32>()?, [2.0, 3.0]);
    let (start, idle) = (Instant::now(), busy());
    let y = (&x + 1.0)?;
    y.realize()?;
    let pending = y.to_vec_async::<f32>();
    assert!(start.elapsed() < Duration::from_millis(400), "recording does not wait");
    assert_eq!(pollster::block_on(pending)?, [2.0, 3.0]);
    assert!(start.elapsed() >= Duration::from_millis(800), "{:?}", start.elapsed());
    let spent = busy() - idle;
    assert!(spent < Duration::from_millis(300), "waiting took {spent:?} of the processor");
    Ok(())
}

fn two_devices() -> Result<()> {
    let devices: Vec<_> = Device::list().into_iter().filter(|info| info.backend == BackendKind::LevelZero).collect();
    assert_eq!(devices.iter().map(|info| info.id()).collect::<Vec<_>>(), ["level-zero:0", "level-zero:1"]);
    let [first, second] = [Device::level_zero(0)?, Device::level_zero(1)?];
    assert!(first != second);
    compute(&first)?;
    compute(&second)?;
    let x = Tensor::arange(0i32, 12, &first)?.reshape((3, 4))?.t()?;
    let there = x.to_device(&second)?;
    assert!(matches!(x.add(&there), Err(Error::DeviceMismatch { .. })));
    assert_eq!((there + 1.0)?.to_device(&first)?.sub(&x)?.to_vec::<i32>()?, [1; 12]);
    let error = Device::level_zero(2).map(|device| device.id());
    assert!(error.as_ref().is_err_and(|error| error.to_string().contains("no device 2")), "{error:?}");
    let units = devices[0].compute_units.expect("Level Zero tells");
    let filter = DeviceFilter::new().backend(BackendKind::LevelZero).gpu().min_compute_units(units).min_memory(1 << 30);
    assert_eq!(filter.list(), devices);
    assert!(filter.clone().min_compute_units(units + 1).list().is_empty());
    Ok(())
}

fn a_discrete_device() -> Result<()> {
    let device = device()?;
    assert_eq!((device.info().kind, device.info().unified_memory), (DeviceKind::Discrete, false));
    let x = Tensor::new([1f32, 2.0], &device)?;
    assert_eq!(x.memory_kind(), MemoryKind::Device);
    compute(&device)?;
    // Several pieces for the copy engine.
    let large = vec![3u8; 40 << 20];
    let there = Tensor::from_slice(&large, large.len(), &device)?;
    assert_eq!(there.max_all()?.to_scalar::<u8>()?, 3);
    assert!(there.to_vec::<u8>()? == large);
    Ok(())
}

fn why_unavailable() -> Result<()> {
    match Device::level_zero(0) {
        Err(Error::BackendUnavailable { backend: BackendKind::LevelZero, reason }) => println!("reason: {reason}"),
        other => panic!("{other:?}"),
    }
    assert!(Device::list().iter().all(|info| info.backend != BackendKind::LevelZero));
    Ok(())
}

/// Runs a child that finds no device, and asserts that its error gives the reason.
fn says(child: Child, parts: &[&str]) -> Result<(), Failed> {
    let ended = child.run()?.succeeds()?;
    let reason = ended.text.lines().find_map(|line| line.strip_prefix("reason: ")).unwrap_or_default();
    match parts.iter().find(|part| !reason.contains(*part)) {
        Some(missing) => Err(format!("`{reason}` does not tell `{missing}`").into()),
        None => Ok(()),
    }
}

fn unavailable_from(library: impl AsRef<Path>, parts: &[&str]) -> Result<(), Failed> {
    let mut child = Child::direct("why_unavailable");
    child.command.env("MARQUETRY_LEVEL_ZERO_LIBRARY", library.as_ref());
    says(child, parts)
}

/// The first library on the search path is not a library.
fn no_loader() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("libze_loader.so.1"), "")?;
    let mut child = Child::through_the_loader("why_unavailable");
    child.command.env("LD_LIBRARY_PATH", folder.path());
    says(child, &["no Level Zero loader", "libze_loader.so.1", "apt-get install libze1"])
}

/// The loader lacks a function that this crate needs.
fn old_library() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let (source, library) = (folder.path().join("old.c"), folder.path().join("libold.so"));
    std::fs::write(&source, "int zeInit(int flags) { return flags; }\n")?;
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status()?;
    if !status.success() {
        return Err("cc makes no library; run `make setup`".into());
    }
    unavailable_from(&library, &["zeDriverGet", "too old"])
}

fn count_compiles() -> Result<()> {
    let device = device()?;
    compute(&device)?;
    assert_eq!(Tensor::arange(0f32, 4.0, &device)?.cumsum(0)?.to_vec::<f32>()?, [0.0, 1.0, 3.0, 6.0]);
    let stats = device.stats();
    println!("compiles {} reuses {}", stats.compiles, stats.reuses);
    Ok(())
}

/// Returns the numbers of kernels that a child has compiled and that it has found on disk.
fn counts(child: Child) -> Result<(u32, u32), Failed> {
    let ended = child.run()?.succeeds()?;
    let text = ended.text.clone();
    ended.leaves_nothing()?;
    let line = text.lines().find_map(|line| line.strip_prefix("compiles ")?.split_once(" reuses "));
    let (compiles, reuses) = line.ok_or("the child counted nothing")?;
    Ok((compiles.parse()?, reuses.parse()?))
}

fn kernels_on_disk(start: fn(&'static str) -> Child) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_path_buf();
    let child = || {
        let mut child = start("count_compiles");
        child.command.env("MARQUETRY_CACHE", &path);
        child
    };
    let (all, none) = counts(child())?;
    assert!(all > 3 && none == 0, "the first start compiles: {all}, {none}");
    assert_eq!(counts(child())?, (0, all), "the second start compiles nothing");

    let files: Vec<PathBuf> =
        std::fs::read_dir(&path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    assert_eq!(files.len(), all as usize);
    for (number, file) in files.iter().enumerate() {
        let mut contents = std::fs::read(file)?;
        match number % 3 {
            0 => contents.truncate(contents.len() / 2),
            1 => contents.clear(),
            _ => *contents.last_mut().ok_or("an empty file")? ^= 1,
        }
        std::fs::write(file, contents)?;
    }
    assert_eq!(counts(child())?, (all, 0), "damaged files are ignored");
    assert_eq!(counts(child())?, (0, all), "and written anew");

    std::fs::remove_dir_all(&path)?;
    let both = [child(), child()].map(|child| std::thread::spawn(move || counts(child)));
    for thread in both {
        let (compiles, reuses) = thread.join().map_err(|_| "a child panicked")??;
        assert_eq!(compiles + reuses, all, "two processes share the folder");
    }
    assert_eq!(counts(child())?, (0, all));
    assert_eq!(std::fs::read_dir(&path)?.count(), all as usize, "nothing else is left");

    let mut without = start("count_compiles");
    without.command.env("MARQUETRY_CACHE", "");
    assert_eq!(counts(without)?, (all, 0));
    Ok(())
}
