//! Environment variables. They are read once per process, so each case runs in its own process.

use crate::error_of;
use marquetry::{DType, Device, Error, Tensor};
use std::ffi::OsStr;
use std::path::Path;

const DEVICES: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

/// Set for children: the text that their test must find.
const CHILD: &str = "MARQUETRY_ERRORS_CHILD";

/// Runs a test of this file in another process.
fn in_a_child<V: AsRef<OsStr>>(test: &str, expected: &str, variables: &[(&str, V)]) {
    let program = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(program);
    let test = format!("environment::{test}");
    child.args(["--exact", &test, "--nocapture"]).env(CHILD, expected).envs(variables.iter().map(|(k, v)| (k, v)));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn child() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// Opens each device and returns the errors.
fn refusals() -> [Error; 3] {
    DEVICES.map(|name| error_of(name.parse::<Device>()))
}

#[test]
fn no_device_at_all() {
    if child().is_some() {
        assert_error!(
            Device::best(),
            Error::NoDevice { .. },
            "no usable device",
            "vulkan is not available",
            "level-zero"
        );
        assert!(Device::list().is_empty());
    } else {
        let nowhere = [
            ("VK_DRIVER_FILES", "/nowhere.json"),
            ("VK_ICD_FILENAMES", "/nowhere.json"),
            ("MARQUETRY_LEVEL_ZERO_LIBRARY", "/nowhere.so"),
        ];
        in_a_child("no_device_at_all", "nothing", &nowhere);
    }
}

#[test]
fn values_that_are_not_understood() {
    if let Some(expected) = child() {
        let (variable, expected) = expected.split_once(' ').unwrap();
        for refusal in refusals().into_iter().chain([error_of(Device::best())]) {
            let text = format!("environment variable {variable}: ");
            assert_error!(Err::<(), _>(refusal), Error::Environment { .. }, text, expected);
        }
        assert!(Device::list().is_empty());
        return;
    }
    let truth = "write 1, 0, true, false, on or off";
    let cases = [
        ("MARQUETRY_DEVICE", "cuda:0", "`cuda:0` names no device; write `vulkan`"),
        ("MARQUETRY_VALIDATION", "yes", truth),
        ("MARQUETRY_FORCE", "garbage", "write words with commas between them: `wgsl`, `addresses`"),
        ("MARQUETRY_TUNING", "nonsense", "write one of "),
    ];
    for (variable, value, expected) in cases {
        in_a_child("values_that_are_not_understood", &format!("{variable} {expected}"), &[(variable, value)]);
    }
    #[cfg(unix)]
    {
        let value: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"o\xffn");
        let expected = format!("MARQUETRY_VALIDATION {truth}");
        in_a_child("values_that_are_not_understood", &expected, &[("MARQUETRY_VALIDATION", value)]);
    }
}

#[test]
fn folders_that_cannot_be_written() {
    if let Some(variable) = child() {
        for refusal in refusals() {
            let text = format!("environment variable {variable}: ");
            assert_error!(Err::<(), _>(refusal), Error::Environment { .. }, text, "is no folder that can be written");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for variable in ["MARQUETRY_DUMP", "MARQUETRY_CACHE"] {
        for path in [&file, &file.join("folder")] {
            in_a_child("folders_that_cannot_be_written", variable, &[(variable, path)]);
        }
    }
}

/// The effects of the variables are visible.
#[test]
fn values_that_are_understood() {
    if let Some(value) = child() {
        let on = value == "on";
        let [vulkan, webgpu, level_zero] = DEVICES.map(|name| name.parse::<Device>().unwrap());
        let dot_products = [&vulkan, &webgpu, &level_zero].map(|device| device.info().features.integer_dot_products);
        // Software devices have the instruction, but do not use it by default.
        assert_eq!(dot_products[0], on, "{dot_products:?}");
        assert!(on || dot_products == [false; 3], "{dot_products:?}");
        assert_eq!(vulkan.info().limits.max_binding_bytes == 16, on);
        assert_eq!(Device::best().unwrap(), webgpu);
        // WGSL kernels get parameters in a uniform buffer, SPIR-V kernels in push constants.
        assert_eq!(webgpu.info().limits.max_parameter_words > 64, on);
        return;
    }
    let all = "wgsl, addresses, dot-products, no-units";
    for (force, expected) in [(all, "on"), ("no-dot-products", "off")] {
        let variables = [("MARQUETRY_FORCE", force), ("MARQUETRY_DEVICE", "webgpu")];
        in_a_child("values_that_are_understood", expected, &variables);
    }
}

/// A folder that existed when the devices were opened, and is gone now.
#[test]
fn kernels_that_cannot_be_dumped() {
    if let Some(folder) = child() {
        let devices = DEVICES.map(|name| name.parse::<Device>().unwrap());
        assert!(Path::new(&folder).is_dir());
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        for device in devices {
            let x = Tensor::zeros((2, 3), DType::F32, &device).and_then(|x| x.exp()?.to_vec::<f32>());
            assert_error!(x, Error::Io { .. }, &folder);
        }
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a").join("b");
    let path = folder.to_str().unwrap();
    in_a_child("kernels_that_cannot_be_dumped", path, &[("MARQUETRY_DUMP", path)]);
}
