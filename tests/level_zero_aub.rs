//! Intel's own Level Zero driver, up to the point that needs a GPU.
//!
//! In AUB mode, the driver writes to a file instead of the GPU. The results of its calls are real, and so is its
//! compiler. But nothing is computed, and no work ever completes. So this test submits work and exits without waiting.
//! The switches are listed in `shared/source/debug_settings/debug_variables_base.inl` in Intel's compute runtime.
//!
//! The test needs the driver (Debian's package `intel-opencl-icd`, elsewhere `intel-level-zero-gpu` or
//! `libze-intel-gpu1`). If the driver is missing, the test says so.

use libtest_mimic::{Arguments, Failed, Trial};
use marquetry::{BackendKind, DType, Device, MemoryKind, Result, Tensor};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::task::{Context, Poll, Waker};

/// The variable that marks the child.
const CHILD: &str = "MARQUETRY_AUB_CHILD";

/// The last line that the child prints.
const DONE: &str = "all calls were accepted";

/// GPUs of four generations, two integrated and two discrete, by the driver's names. The second part is the number of
/// slices, subslices per slice and execution units per subslice. Discrete GPUs need it.
const GPUS: [(&str, &str); 4] = [("skl", "default"), ("tgllp", "default"), ("dg2", "8x4x16"), ("pvc", "8x8x8")];

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        // The backend logs errors that it cannot return.
        env_logger::Builder::new().filter_level(log::LevelFilter::Error).init();
        let device = "level-zero:0".parse::<Device>().unwrap_or_else(|error| panic!("{error}"));
        // Closing the device would wait for the work.
        let device = ManuallyDrop::new(device);
        submit_everything(&device).unwrap_or_else(|error| panic!("{error}"));
        println!("{DONE}");
        return ExitCode::SUCCESS;
    }
    let Some(driver) = driver() else {
        println!("Intel's Level Zero driver was not tried: it takes the package intel-opencl-icd");
        return ExitCode::SUCCESS;
    };
    let trials = GPUS.map(|(gpu, size)| {
        let driver = driver.clone();
        Trial::test(format!("aub::{gpu}"), move || try_driver(&driver, gpu, size))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

/// Returns the path of the driver, if it is installed.
fn driver() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    folders.map(|folder| Path::new(folder).join("libze_intel_gpu.so.1")).into_iter().find(|path| path.exists())
}

fn try_driver(driver: &Path, gpu: &str, size: &str) -> std::result::Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?);
    child.env(CHILD, "1").env("MARQUETRY_CACHE", "").env_remove("MARQUETRY_LEVEL_ZERO_LIBRARY");
    child.env("ZE_ENABLE_ALT_DRIVERS", driver).env("NEOReadDebugKeys", "1").env("SetCommandStreamReceiver", "1");
    child
        .env("ProductFamilyOverride", gpu)
        .env("HardwareInfoOverride", size)
        .env("AUBDumpCaptureFileName", "/dev/null");
    let output = child.output()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // Ignore the exit status: the driver may crash if work is left.
    let logged = text.contains(" ERROR ");
    if text.contains(DONE) && !logged { Ok(()) } else { Err(format!("{}\n{text}", output.status).into()) }
}

/// Submits work of every kind, in more than one batch.
fn submit_everything(device: &Device) -> Result<()> {
    assert_eq!(device.info().backend, BackendKind::LevelZero);
    println!("{}", device.info());
    let x = Tensor::from_slice(&[0.5f32; 96 * 160], (96, 160), device)?;
    let y = x.matmul(&x.t()?)?.gelu()?.add(&x.sum(0)?.narrow(0, 0, 96)?)?.softmax(-1)?;
    submit(&y)?;
    for kind in [MemoryKind::Device, MemoryKind::Shared, MemoryKind::Host] {
        let there = y.to_memory(kind)?.slice_assign((2..5, 10..90), &y.narrow(0, 0, 3)?.narrow(1, 7, 80)?)?;
        submit(&there)?;
        submit(&there.to_dtype(DType::F16)?.to_dtype(DType::F32)?)?;
    }
    submit(&Tensor::cat(&[&y, &Tensor::randn(0f32, 1.0, (8, 96), device)?], 0)?)?;
    assert_eq!(device.stats().waits, 0);
    Ok(())
}

/// Submits the work of a tensor and a read of its bytes, without waiting for them.
fn submit(x: &Tensor) -> Result<()> {
    let before = x.device().stats().submissions;
    let mut read = Box::pin(x.to_vec_async::<f32>());
    if let Poll::Ready(result) = read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        result?;
    }
    assert!(x.device().stats().submissions > before, "nothing was submitted");
    // The device never completes its work, so the buffers must never be freed.
    std::mem::forget((read, x.clone()));
    Ok(())
}
