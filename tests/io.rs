//! Tensors in safetensors, npy and npz files on every device, and damaged files.
//!
//! numpy 2.4 wrote the files in `tests/data/numpy` with `save`, `savez` and `savez_compressed`. Safetensors files are
//! compared with the reference implementation, the crate `safetensors`, in both directions.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use half::f16;
use marquetry::io::{LoadConfig, Npz, SafeTensors};
use marquetry::{DType, Device, Element, Error, Result, Tensor};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const DEVICES: [&str; 3] = ["vulkan", "webgpu", "level-zero"];

fn open(name: &str) -> Device {
    name.parse().unwrap_or_else(|error| panic!("{error}\nrun `make setup`"))
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn numpy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/numpy").join(name)
}

/// Returns tensors of every dtype, in every order, and some without elements.
fn samples(device: &Device) -> Vec<(String, Tensor)> {
    let mut samples = Vec::new();
    let lacks = |dtype| {
        let features = device.info().features;
        dtype == DType::I64 && !features.i64 || dtype == DType::F64 && !features.f64
    };
    for dtype in DType::ALL.into_iter().filter(|&dtype| !lacks(dtype)) {
        let x = Tensor::arange(0f32, 24.0, device).unwrap().reshape((2, 3, 4)).unwrap().to_dtype(dtype).unwrap();
        samples.push((format!("{dtype}.transposed"), x.transpose(0, 2).unwrap()));
        samples.push((format!("{dtype}.slice"), x.narrow(2, 1, 3).unwrap()));
        samples.push((format!("{dtype}.vector"), x.flatten_all().unwrap().narrow(0, 0, 5).unwrap()));
        samples.push((format!("{dtype}.scalar"), Tensor::ones((), dtype, device).unwrap()));
        samples.push((format!("{dtype}.empty"), Tensor::ones((3, 0), dtype, device).unwrap()));
        samples.push((dtype.to_string(), x));
    }
    samples
}

/// Asserts that two tensors, which may be on different devices, have the same shape, dtype and elements.
fn assert_same(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()), "{what}");
    let numbers = |x: &Tensor| x.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(numbers(found), numbers(expected), "{what}");
}

fn assert_all_same(found: &HashMap<String, Tensor>, expected: &[(String, Tensor)]) {
    assert_eq!(found.len(), expected.len());
    expected.iter().for_each(|(name, tensor)| assert_same(&found[name], tensor, name));
}

#[track_caller]
fn assert_refused<T: Debug>(result: Result<T>, parts: &[&str]) {
    match result {
        Err(Error::Format { path, message }) => {
            let message = Error::Format { path, message }.to_string();
            parts.iter().for_each(|part| assert!(message.contains(part), "`{message}` does not tell `{part}`"));
        }
        result => panic!("expected Error::Format that tells {parts:?}, got {result:?}"),
    }
}

#[test]
fn all_formats_give_back_what_was_saved() {
    let folder = folder();
    let (safetensors, npz, npy) =
        (folder.path().join("x.safetensors"), folder.path().join("x.npz"), folder.path().join("x.npy"));
    for device in DEVICES.map(open) {
        let samples = samples(&device);
        SafeTensors::save(&safetensors, samples.iter().map(|(name, tensor)| (name, tensor))).unwrap();
        assert_all_same(&SafeTensors::open(&safetensors).unwrap().load_all(&device).unwrap(), &samples);
        // Numpy lacks these dtypes.
        let (foreign, samples): (Vec<_>, Vec<_>) =
            samples.into_iter().partition(|(_, tensor)| tensor.dtype() == DType::BF16);
        assert_refused(foreign[0].1.write_npy(&npy), &["x.npy", "the tensor is of bf16", "to_dtype"]);
        assert_refused(Npz::save(&npz, foreign), &["x.npz", "is of bf16"]);
        Npz::save(&npz, samples.iter().map(|(name, tensor)| (name, tensor))).unwrap();
        assert_all_same(&Npz::open(&npz).unwrap().load_all(&device).unwrap(), &samples);
        for (name, tensor) in &samples {
            tensor.write_npy(&npy).unwrap();
            assert_same(&Tensor::read_npy(&npy, &device).unwrap(), tensor, name);
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "no temporary files are left");
}

#[test]
fn the_reference_implementation_reads_what_is_saved() {
    let (folder, device) = (folder(), open("vulkan"));
    let path = folder.path().join("x.safetensors");
    let samples = samples(&device);
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let all = samples.iter().map(|(name, tensor)| (name, tensor));
    SafeTensors::save_with_metadata(&path, all, metadata.clone()).unwrap();
    assert_eq!(SafeTensors::open(&path).unwrap().metadata(), metadata);

    let bytes = std::fs::read(&path).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), samples.len());
    assert_eq!(reference.tensor("u8").unwrap().data(), (0..24).collect::<Vec<u8>>());
    for (name, tensor) in &samples {
        let view = reference.tensor(name).unwrap();
        assert_eq!((view.shape(), view.dtype().to_string()), (tensor.dims(), tensor.dtype().name().to_uppercase()));
        // The offset within the file. A mapping starts at a page.
        let offset = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(offset % tensor.dtype().size_in_bytes(), 0, "{name} is aligned");
    }
}

/// Returns a file that the reference implementation wrote.
fn reference_file(tensors: &[(&str, Dtype, Vec<usize>, &[u8])]) -> Vec<u8> {
    let views =
        tensors.iter().map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

#[test]
fn what_the_reference_implementation_writes_is_read() {
    let bytes: Vec<u8> = (0..24).collect();
    let file = reference_file(&[
        ("b", Dtype::F32, vec![2, 3], &bytes),
        // After this tensor, nothing is aligned.
        ("a", Dtype::U8, vec![1], &bytes[..1]),
        ("complex", Dtype::C64, vec![3], &bytes),
    ]);
    let file = SafeTensors::from_bytes(file).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["a", "b", "complex"]);
    let info = file.info("b").unwrap();
    assert_eq!((info.dtype, info.shape.dims()), (DType::F32, &[2, 3][..]));
    assert_eq!(
        file.load("b", &open("vulkan")).unwrap().to_vec::<f32>().unwrap(),
        bytemuck::pod_collect_to_vec::<_, f32>(&bytes)
    );
    assert_refused(file.info("complex"), &["<memory>", "`complex`", "C64", "f32"]);
    assert_refused(file.load("complex", &open("vulkan")), &["C64"]);
    assert_refused(file.info("c"), &["no tensor `c`", "`a`, `b`, `complex`"]);
}

#[test]
fn elements_need_no_alignment() {
    // A header of odd length moves the elements to odd addresses.
    let header = br#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}} "#;
    let header = if header.len().is_multiple_of(2) { &header[..header.len() - 1] } else { &header[..] };
    let elements = bytemuck::cast_slice(&[1f32, 2.0, 3.0]);
    let file = [&(header.len() as u64).to_le_bytes()[..], header, elements].concat();
    let folder = folder();
    let path = folder.path().join("odd.safetensors");
    std::fs::write(&path, file).unwrap();
    for device in DEVICES.map(open) {
        let x = SafeTensors::open(&path).unwrap().load("x", &device).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn shards_are_one_file() {
    let (folder, device) = (folder(), open("vulkan"));
    let path = |name: &str| folder.path().join(name);
    let (x, y) = (Tensor::new([1f32, 2.0], &device).unwrap(), Tensor::new([3u8], &device).unwrap());
    SafeTensors::save(path("1.safetensors"), [("x", &x)]).unwrap();
    SafeTensors::save(path("2.safetensors"), [("y", &y)]).unwrap();
    let check = |file: SafeTensors| {
        assert_eq!(file.names().collect::<Vec<_>>(), ["x", "y"]);
        assert_same(&file.load("y", &device).unwrap(), &y, "y");
    };
    check(SafeTensors::open_shards([path("1.safetensors"), path("2.safetensors")]).unwrap());

    let index = path("model.safetensors.index.json");
    let open_index = |json: &str| {
        std::fs::write(&index, json).unwrap();
        SafeTensors::open_index(&index)
    };
    check(open_index(r#"{"metadata": {}, "weight_map": {"x": "1.safetensors", "y": "2.safetensors"}}"#).unwrap());
    let swapped = r#"{"weight_map": {"x": "2.safetensors", "y": "1.safetensors"}}"#;
    assert_refused(open_index(swapped), &["index.json", "`x` is not in 2.safetensors"]);
    let absolute = path("1.safetensors").display().to_string();
    for elsewhere in
        ["../1.safetensors", "1.safetensors/", "1.safetensors/.", "a/1.safetensors", ".", "..", "", &absolute]
    {
        let index = serde_json::json!({"weight_map": {"x": elsewhere}}).to_string();
        assert_refused(open_index(&index), &["index.json", "`x` is in no file beside", &format!("{elsewhere:?}")]);
    }
    let nul = r#"{"weight_map": {"x": "1.safetensors\u0000"}}"#;
    assert_refused(open_index(nul), &["index.json", "`x` is in no file beside", r#""1.safetensors\0""#]);
    assert_refused(open_index(r#"{"weight_map": {"x": 1}}"#), &["index.json", "`x` is in no file beside", "1"]);
    assert_refused(open_index("{}"), &["weight_map"]);
    assert_refused(open_index("{"), &["not an index"]);
    assert!(matches!(open_index(r#"{"weight_map": {"x": "3.safetensors"}}"#), Err(Error::Io { .. })));

    SafeTensors::save(path("3.safetensors"), [("x", &x)]).unwrap();
    let twice = SafeTensors::open_shards([path("1.safetensors"), path("3.safetensors")]);
    assert_refused(twice, &["3.safetensors", "`x` is also in", "1.safetensors"]);
}

#[test]
fn a_file_may_be_replaced_by_what_was_loaded_from_it() {
    let (folder, device) = (folder(), open("vulkan"));
    let path = folder.path().join("x.safetensors");
    SafeTensors::save(&path, [("x", Tensor::new([1f32, 2.0], &device).unwrap())]).unwrap();
    let file = SafeTensors::open(&path).unwrap();
    let doubled = (file.load("x", &device).unwrap() * 2.0).unwrap();
    SafeTensors::save(&path, [("x", doubled)]).unwrap();
    let numbers = |file: &SafeTensors| file.load("x", &device).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(numbers(&file), [1.0, 2.0], "a file that is open stays what it was");
    assert_eq!(numbers(&SafeTensors::open(&path).unwrap()), [2.0, 4.0]);
}

#[test]
fn arrays_of_numpy_are_read() {
    for device in DEVICES.map(open) {
        fn check<T: Element>(name: &str, dims: &[usize], expected: &[T], device: &Device) {
            let x = Tensor::read_npy(numpy(name), device).unwrap();
            assert_eq!(x.dims(), dims, "{name}");
            assert_eq!(x.to_vec::<T>().unwrap(), expected, "{name}");
        }
        let quarters = [0f32, 0.25, 0.5, 0.75, 1.0, 1.25];
        check("f32.npy", &[2, 3], &quarters, &device);
        check("f32_version2.npy", &[2, 3], &quarters, &device);
        check("u8_vector.npy", &[3], &[1u8, 2, 255], &device);
        let halves: Vec<f16> = (0..24u8).map(f16::from).collect();
        check("f16_fortran.npy", &[2, 3, 4], &halves, &device);
        check("i32_big_endian.npy", &[2, 2], &[1i32, -2, 3, 1 << 30], &device);
        check("u32_scalar.npy", &[], &[7u32], &device);
        check("f32_empty.npy", &[2, 0, 3], &[0f32; 0], &device);
        for name in ["stored.npz", "compressed.npz"] {
            let file = Npz::open(numpy(name)).unwrap();
            assert_eq!(file.names().collect::<Vec<_>>(), ["layer.weight", "x"]);
            assert_eq!(file.load("x", &device).unwrap().to_vec::<f32>().unwrap(), quarters, "{name}");
            let info = file.info("layer.weight").unwrap();
            assert_eq!((info.dtype, info.shape.dims()), (DType::U8, &[3][..]), "{name}");
        }
    }
    let fortran = Tensor::read_npy(numpy("f16_fortran.npy"), &open("vulkan")).unwrap();
    assert_eq!(fortran.strides(), [1, 2, 6], "a view, not a copy");
}

#[test]
fn arrays_are_written_as_numpy_writes_them() {
    let (folder, device) = (folder(), open("vulkan"));
    let path = folder.path().join("x.npy");
    for name in ["f32.npy", "u8_vector.npy", "u32_scalar.npy", "f32_empty.npy", "bool.npy", "i8.npy"] {
        Tensor::read_npy(numpy(name), &device).unwrap().write_npy(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(numpy(name)).unwrap(), "{name}");
    }
}

#[test]
fn files_that_are_none_are_refused() {
    let device = open("vulkan");
    let missing = SafeTensors::open("no-such-file.safetensors");
    assert!(matches!(&missing, Err(Error::Io { kind: std::io::ErrorKind::NotFound, .. })), "{missing:?}");
    assert!(missing.unwrap_err().to_string().starts_with("no-such-file.safetensors: "));
    assert!(matches!(Npz::open("no-such-file.npz"), Err(Error::Io { .. })));
    assert!(matches!(Tensor::read_npy("no-such-file.npy", &device), Err(Error::Io { .. })));
    let x = Tensor::new([1f32], &device).unwrap();
    assert!(matches!(x.write_npy("no-such-folder/x.npy"), Err(Error::Io { .. })));

    // A folder cannot be read.
    let tests = env!("CARGO_MANIFEST_DIR");
    assert!(matches!(SafeTensors::open(tests), Err(Error::Io { .. })));
    assert!(matches!(Npz::open(tests), Err(Error::Io { .. })));
    assert!(matches!(Tensor::read_npy(tests, &device), Err(Error::Io { .. })));

    assert_refused(SafeTensors::open(numpy("f32.npy")), &["f32.npy", "not a safetensors file"]);
    assert_refused(Npz::open(numpy("f32.npy")), &["f32.npy", "not a sound npz file"]);
    assert_refused(Tensor::read_npy(numpy("stored.npz"), &device), &["stored.npz", "does not begin as"]);
    assert_refused(Tensor::read_npy(numpy("complex.npy"), &device), &["the array holds <c16", "f32"]);
    assert_refused(Tensor::read_npy(numpy("fields.npy"), &device), &["[('a', '<i4')"]);
    let file = Npz::open(numpy("stored.npz")).unwrap();
    assert_refused(file.load("y", &device), &["no tensor `y`", "`layer.weight`, `x`"]);

    let folder = folder();
    let twice = [("x", &x), ("x", &x)];
    assert_refused(SafeTensors::save(folder.path().join("x.safetensors"), twice), &["x.safetensors", "same name"]);
    assert_refused(Npz::save(folder.path().join("x.npz"), twice), &["x.npz", "`x`", "same name"]);
    let reserved = SafeTensors::save(folder.path().join("x.safetensors"), [("__metadata__", &x)]);
    assert_refused(reserved, &["x.safetensors", "no tensor can be called `__metadata__`", "another name"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a file that failed is not left behind");
}

#[test]
fn truncated_files_are_refused() {
    let device = open("vulkan");
    let data = [0u8; 24];
    let safetensors = reference_file(&[("x", Dtype::F32, vec![6], &data)]);
    for length in 0..safetensors.len() {
        assert_refused(SafeTensors::from_bytes(&safetensors[..length]), &["<memory>"]);
    }
    let cut = SafeTensors::from_bytes(&safetensors[..safetensors.len() - 1]);
    assert_refused(cut, &["24 bytes of elements, and there are 23"]);

    let folder = folder();
    let path = folder.path().join("x.npy");
    let npy = std::fs::read(numpy("f32.npy")).unwrap();
    for length in 0..npy.len() {
        std::fs::write(&path, &npy[..length]).unwrap();
        assert_refused(Tensor::read_npy(&path, &device), &["x.npy", "the array"]);
    }
    assert_refused(Tensor::read_npy(&path, &device), &["[2, 3] of f32", "23 bytes"]);
    let npz = std::fs::read(numpy("compressed.npz")).unwrap();
    for length in 0..npz.len() {
        assert!(Npz::from_bytes(&npz[..length]).and_then(|file| file.load_all(&device)).is_err(), "{length} bytes");
    }
}

/// A file that is shortened while it is open, by a program that writes it in place for example.
#[test]
fn files_that_shrink_are_errors() {
    let folder = folder();
    for name in DEVICES {
        let device = open(name);
        // Two pieces each, so that the first one has been uploaded when the second one is missing.
        let x = Tensor::arange(0u32, 1_500_000, &device).unwrap();
        let shorten = |path: &Path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(5 << 20).unwrap();
        };
        let path = folder.path().join("x.safetensors");
        SafeTensors::save(&path, [("x", &x)]).unwrap();
        let file = SafeTensors::open(&path).unwrap();
        shorten(&path);
        assert_refused(file.load("x", &device), &["x.safetensors", "shortened"]);
        let path = folder.path().join("x.npz");
        Npz::save(&path, [("x", &x)]).unwrap();
        let file = Npz::open(&path).unwrap();
        shorten(&path);
        assert_refused(file.load("x", &device), &["x.npz", "shortened"]);
        assert_eq!(
            x.add(1u32).unwrap().max_all().unwrap().to_scalar::<u32>().unwrap(),
            1_500_000,
            "the device goes on"
        );
    }
}

#[test]
fn what_is_loaded_can_be_chosen() {
    let device = open("vulkan");
    let floats = Tensor::new([[0.5f32, 2.0], [3.0, -1.0]], &device).unwrap();
    let integers = Tensor::new([7u32, 9, 11], &device).unwrap();
    let tensors = [("a.weight", &floats), ("a.ids", &integers), ("b.weight", &floats)];
    let folder = folder();
    let paths = ["x.safetensors", "x.npz"].map(|name| folder.path().join(name));
    SafeTensors::save(&paths[0], tensors).unwrap();
    Npz::save(&paths[1], tensors).unwrap();
    let (safetensors, npz) = (SafeTensors::open(&paths[0]).unwrap(), Npz::open(&paths[1]).unwrap());
    type Load<'a> = &'a dyn Fn(LoadConfig) -> HashMap<String, Tensor>;
    let loads: [Load; 2] =
        [&|config| safetensors.load_with(&device, config).unwrap(), &|config| npz.load_with(&device, config).unwrap()];
    for load in loads {
        let mut seen = Vec::new();
        let config = LoadConfig::new()
            .filter(|name| name.starts_with("a."))
            .dtype(DType::F16)
            .progress(|progress| seen.push((progress.name.to_string(), progress.bytes, progress.total)));
        let chosen = load(config);
        assert_eq!(seen, [("a.ids".to_string(), 12, 28), ("a.weight".to_string(), 28, 28)]);
        assert_eq!(chosen.len(), 2);
        assert_eq!(chosen["a.weight"].dtype(), DType::F16);
        assert_same(&chosen["a.weight"].to_dtype(DType::F32).unwrap(), &floats, "halves of small numbers");
        assert_same(&chosen["a.ids"], &integers, "integers stay");
        assert_eq!(load(LoadConfig::new()).len(), 3);
    }
}

/// Elements of several pieces, of which each is turned or checked.
#[test]
fn long_arrays_are_converted_in_pieces() {
    const COUNT: usize = (9 << 20) / 4 + 3;
    let folder = folder();
    let numbers: Vec<i32> = (0..COUNT as i32).map(|i| i.wrapping_mul(0x0103_0507)).collect();
    let header = format!("{{'descr': '>i4', 'fortran_order': False, 'shape': ({COUNT},), }}\n");
    let mut npy = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    npy.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    let path = folder.path().join("x.npy");
    std::fs::write(&path, npy).unwrap();
    let mut truth = vec![1u8; 9 << 20];
    truth[5 << 20] = 2;
    for name in DEVICES {
        let device = open(name);
        assert!(Tensor::read_npy(&path, &device).unwrap().to_vec::<i32>().unwrap() == numbers, "{name}");
        let wrong = Tensor::from_raw_buffer(&truth, DType::Bool, truth.len(), &device);
        assert!(matches!(wrong, Err(Error::InvalidArgument { op: "from_raw_buffer", .. })), "{name}");
    }
}

#[test]
fn sizes_that_no_machine_has_are_refused() {
    let file = |entry: &str| {
        let header = format!("{{\"x\":{entry}}}");
        SafeTensors::from_bytes([&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())
    };
    let end = u64::MAX;
    assert_refused(file(&format!(r#"{{"dtype":"U8","shape":[{end}],"data_offsets":[0,{end}]}}"#)), &["<memory>"]);
    // The offsets wrap to the file's length.
    let end = u64::MAX / 8;
    assert_refused(file(&format!(r#"{{"dtype":"U8","shape":[{end}],"data_offsets":[0,{end}]}}"#)), &["there are 0"]);
    assert_refused(SafeTensors::from_bytes(u64::MAX.to_le_bytes()), &["cut off"]);

    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({0}, {0}), }}\n", u64::MAX);
    let npy = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    let folder = folder();
    let path = folder.path().join("x.npy");
    std::fs::write(&path, npy).unwrap();
    assert_refused(Tensor::read_npy(&path, &open("vulkan")), &["x.npy"]);
}

/// Returns the start of an npy file that declares `count` numbers of `f32`.
fn npy_header(count: usize) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat()
}

/// A zip archive with these entries.
fn archive(entries: &[(&str, &[u8])], method: zip::CompressionMethod) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for (name, contents) in entries {
        archive.start_file(*name, options).unwrap();
        archive.write_all(contents).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// Returns bytes that do not compress.
fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_769) >> 13) as u8).collect()
}

/// Changes the size of the only entry in the directory of an archive.
fn tell_size(archive: &mut [u8], size: usize) {
    let directory = archive.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap();
    archive[directory + 24..][..4].copy_from_slice(&(size as u32).to_le_bytes());
}

#[test]
fn arrays_that_are_not_compressed_are_checked_too() {
    let device = open("vulkan");
    let elements: &[u8] = bytemuck::cast_slice(&[1f32, 2.0, 3.0]);
    let intact = archive(&[("x.npy", &[&npy_header(3), elements].concat())], zip::CompressionMethod::Stored);
    let load = |file: &[u8]| Npz::from_bytes(file)?.load("x", &device)?.to_vec::<f32>();
    assert_eq!(load(&intact).unwrap(), [1.0, 2.0, 3.0]);
    let start = intact.windows(elements.len()).position(|bytes| bytes == elements).unwrap();
    for place in start..start + elements.len() {
        let mut flipped = intact.clone();
        flipped[place] ^= 0x10;
        assert_refused(load(&flipped), &["not a sound npz file", "checksum"]);
        // This reads only the header.
        assert_eq!(Npz::from_bytes(flipped).unwrap().info("x").unwrap().shape.dims(), [3]);
    }
}

#[test]
fn arrays_are_not_inflated_beyond_what_their_headers_promise() {
    let device = open("vulkan");
    let load = |file: &[u8]| Npz::from_bytes(file)?.load("x", &device);
    const FOLLOWING: usize = 1 << 18;
    let elements = noise(FOLLOWING);
    // Damage in the middle is noticed if that part is decompressed.
    let deflated = |count| {
        let contents = [&npy_header(count)[..], &elements].concat();
        archive(&[("x.npy", &contents)], zip::CompressionMethod::Deflated)
    };
    let damaged = |count| {
        let mut file = deflated(count);
        let middle = file.len() / 2;
        file[middle..middle + 16].fill(0xff);
        file
    };
    let expected: Vec<f32> = bytemuck::pod_collect_to_vec(&elements);
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&load(&deflated(FOLLOWING / 4)).unwrap().to_vec::<f32>().unwrap()), bits(&expected));
    assert_refused(load(&damaged(FOLLOWING / 4)), &["not a sound npz file"]);
    // More and fewer bytes than declared: 12 bytes, and a gibibyte. The archive's size already shows the difference.
    for (count, promised) in [(3, "12 bytes"), (1 << 28, "1073741824 bytes")] {
        let file = damaged(count);
        assert_refused(
            load(&file),
            &["`x`", &format!("[{count}] of f32"), promised, &format!("{FOLLOWING} bytes follow")],
        );
        assert_eq!(Npz::from_bytes(file).unwrap().info("x").unwrap().shape.dims(), [count]);
    }
    // The archive declares the same size as the header, but the stream holds another one.
    for (count, reason) in [(3, "not a sound npz file: "), (1 << 28, &*format!("{FOLLOWING} bytes follow"))] {
        let mut file = deflated(count);
        tell_size(&mut file, npy_header(count).len() + 4 * count);
        assert_refused(load(&file), &[reason]);
    }
    // The same without compression.
    for count in [3, 1 << 28] {
        let contents = [&npy_header(count)[..], &elements].concat();
        let file = archive(&[("x.npy", &contents)], zip::CompressionMethod::Stored);
        assert_refused(load(&file), &["`x`", &format!("{FOLLOWING} bytes follow")]);
    }
    // A header of 4 GiB in a small file.
    let header = [b"\x93NUMPY\x02\x00", &u32::MAX.to_le_bytes()[..], &[b' '; 1 << 21]].concat();
    let file = archive(&[("x.npy", &header)], zip::CompressionMethod::Deflated);
    assert_refused(load(&file), &["`x`", "header of 4294967295 bytes"]);
}

#[test]
fn two_arrays_of_one_name_are_refused() {
    let contents = [&npy_header(1)[..], &[0; 4]].concat();
    let mut file = archive(&[("x.npy", &contents), ("y.npy", &contents)], zip::CompressionMethod::Stored);
    assert_eq!(Npz::from_bytes(&*file).unwrap().names().collect::<Vec<_>>(), ["x", "y"]);
    for place in 0..file.len() - 5 {
        if &file[place..place + 5] == b"y.npy" {
            file[place] = b'x';
        }
    }
    assert_refused(Npz::from_bytes(file), &["<memory>", "two of its entries have the same name"]);
}

/// Replaces a few bytes of a file.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
}

fn damaged(file: &[u8], damage: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    let mut file = file.to_vec();
    for (place, byte) in damage {
        let place = place.index(file.len());
        file[place] = *byte;
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// Any damage gives an error or tensors, but no panic.
    #[test]
    fn damaged_files_do_no_harm(damage in damage()) {
        let device = open("vulkan");
        let data: Vec<u8> = (0..24).collect();
        let file = reference_file(&[("x", Dtype::F32, vec![2, 3], &data), ("y", Dtype::U8, vec![24], &data)]);
        _ = SafeTensors::from_bytes(damaged(&file, &damage)).and_then(|file| file.load_all(&device));
        for name in ["stored.npz", "compressed.npz"] {
            let file = std::fs::read(numpy(name)).unwrap();
            _ = Npz::from_bytes(damaged(&file, &damage)).and_then(|file| file.load_all(&device));
        }
    }
}
