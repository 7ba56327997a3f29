//! Samples of images at the coordinates of a grid.

use super::{floats, shaped};
use crate::compare::{Expected, Sample, check, download, upload};
use crate::full_tier;
use crate::layouts::Layout;
use crate::reference::array;
use crate::reference::grid_sample::grid_sample;
use crate::reference::inputs::{Domain, Inputs};
use crate::reference::numbers::round;
use crate::suite::{Outcome, Suite};
use crate::tolerance::{EPS, EXACT, Table, Tolerance};
use marquetry::{DType, Device, GridSampleConfig, GridSampleMode, GridSamplePadding};

pub const TOLERANCES: Table = &[
    (
        &["grid_sample"],
        Tolerance {
            ulp: 0.5,
            of_scale: 8.0 * EPS,
            reason: "the computed place is rounded, and it weights the elements (the scale)",
            ..EXACT
        },
    ),
    (&["grid_sample_nearest"], Tolerance { reason: "nothing is computed", ..EXACT }),
    (
        &["grid_sample_literal"],
        Tolerance { absolute: 1e-5, reason: "another runtime's numbers, computed in f32 and rounded", ..EXACT },
    ),
];

const MODES: [GridSampleMode; 3] = [GridSampleMode::Nearest, GridSampleMode::Bilinear, GridSampleMode::Bicubic];

const PADDINGS: [GridSamplePadding; 3] =
    [GridSamplePadding::Zeros, GridSamplePadding::Border, GridSamplePadding::Reflection];

/// Coordinates in `3 -1 4 1 / -5 9 2 6 / -5 3 5 -8`. ONNX Runtime 1.31's samples there follow in `BY_ONNX`.
const PLACES: [f64; 14] = [-0.875, -0.5, 0.25, 0.75, 0.0, 0.0, 1.25, -1.5, -2.75, 0.4, 0.6, 1.1, 3.3, -4.2];
const BY_ONNX: [(GridSampleMode, GridSamplePadding, bool, [f64; 7]); 18] = [
    (GridSampleMode::Nearest, GridSamplePadding::Zeros, false, [3.0, 5.0, 2.0, 0.0, 0.0, 0.0, 0.0]),
    (GridSampleMode::Nearest, GridSamplePadding::Zeros, true, [3.0, 5.0, 2.0, 1.0, 0.0, 5.0, 0.0]),
    (GridSampleMode::Nearest, GridSamplePadding::Border, false, [3.0, 5.0, 2.0, 1.0, -5.0, -8.0, 1.0]),
    (GridSampleMode::Nearest, GridSamplePadding::Border, true, [3.0, 5.0, 2.0, 1.0, -5.0, 5.0, 1.0]),
    (GridSampleMode::Nearest, GridSamplePadding::Reflection, false, [3.0, 5.0, 2.0, 1.0, -8.0, -8.0, -5.0]),
    (GridSampleMode::Nearest, GridSamplePadding::Reflection, true, [3.0, 5.0, 2.0, 1.0, 6.0, 5.0, -5.0]),
    (GridSampleMode::Bilinear, GridSamplePadding::Zeros, false, [0.75, 4.375, 5.5, 0.0, 0.0, -1.435001, 0.0]),
    (GridSampleMode::Bilinear, GridSamplePadding::Zeros, true, [-0.0625, 4.28125, 5.5, 0.3125, 0.0, -0.180001, 0.0]),
    (GridSampleMode::Bilinear, GridSamplePadding::Border, false, [1.0, 5.0, 5.5, 1.0, -5.0, -4.1, 1.0]),
    (GridSampleMode::Bilinear, GridSamplePadding::Border, true, [-0.0625, 4.28125, 5.5, 1.0, -5.0, -0.200001, 1.0]),
    (GridSampleMode::Bilinear, GridSamplePadding::Reflection, false, [1.0, 5.0, 5.5, 2.25, -2.399999, -4.1, -1.739999]),
    (
        GridSampleMode::Bilinear,
        GridSamplePadding::Reflection,
        true,
        [-0.0625, 4.28125, 5.5, 3.3125, 1.45, 0.179999, 1.280003],
    ),
    (GridSampleMode::Bicubic, GridSamplePadding::Zeros, false, [1.177185, 4.692871, 6.4375, 0.0, 0.0, -2.337724, 0.0]),
    (
        GridSampleMode::Bicubic,
        GridSamplePadding::Zeros,
        true,
        [0.093157, 5.651978, 6.4375, -0.216904, 0.0, -0.591518, 0.0],
    ),
    (
        GridSampleMode::Bicubic,
        GridSamplePadding::Border,
        false,
        [1.157013, 5.215332, 6.4375, 1.0, -5.575999, -4.805927, 1.0],
    ),
    (
        GridSampleMode::Bicubic,
        GridSamplePadding::Border,
        true,
        [-0.04994, 5.03961, 6.4375, 0.129562, -5.863998, 0.01259, 1.0],
    ),
    (
        GridSampleMode::Bicubic,
        GridSamplePadding::Reflection,
        false,
        [1.146851, 5.246094, 6.4375, 2.625, -2.207996, -5.785423, -1.94621],
    ),
    (
        GridSampleMode::Bicubic,
        GridSamplePadding::Reflection,
        true,
        [0.039988, 5.379036, 6.4375, 3.936295, 0.59354, -0.682746, 0.807123],
    ),
];

fn op(mode: GridSampleMode) -> &'static str {
    if mode == GridSampleMode::Nearest { "grid_sample_nearest" } else { "grid_sample" }
}

fn configs() -> impl Iterator<Item = GridSampleConfig> {
    let with_padding = |mode| PADDINGS.map(|padding| (mode, padding));
    MODES.into_iter().flat_map(with_padding).flat_map(|(mode, padding)| {
        [false, true].map(|align_corners| GridSampleConfig { mode, padding, align_corners })
    })
}

/// Numbers from about -2 to 2 in multiples of 1/64. Coordinates are exact in `f32`, even halfway between two elements.
fn grid(shape: &[usize], dtype: DType, layout: Layout, device: &Device) -> Outcome<Sample> {
    let mut inputs = Inputs::new("grid");
    let count = shape.iter().product();
    let numbers = (0..count).map(|_| ((inputs.uniform() * 4.0 - 2.0) * 64.0).round() / 64.0).collect();
    layout.place(array(shape, numbers), dtype, device)
}

fn check_samples(x: &Sample, grid: &Sample, config: GridSampleConfig) -> Outcome {
    let (values, scale) = grid_sample(&x.values, &grid.values, config);
    let expected = Expected::new(values, x.tensor.dtype()).with_scale(scale);
    check(op(config.mode), &x.tensor.grid_sample(&grid.tensor, config)?, &expected).map_err(|failed| {
        let message = failed.message().unwrap_or_default();
        format!("{config:?} of {:?} at {:?}\n{message}", x.values.shape(), grid.values.shape()).into()
    })
}

/// Arbitrary coordinates in images of random sizes.
fn check_random(config: GridSampleConfig, dtype: DType, device: &Device) -> Outcome {
    let mut inputs = Inputs::new(&format!("{config:?} of {dtype}"));
    for _ in 0..if full_tier() { 100 } else { 10 } {
        let [images, channels, rows, columns] = [1, 2, 3, 4].map(|n| 1 + inputs.below(n + 2));
        let x = [images, channels, 1 + inputs.below(9), 1 + inputs.below(9)];
        let x = shaped("grid_sample", &x, Layout::Contiguous, dtype, Domain::Normal, device)?;
        let numbers: Vec<f64> = (0..images * rows * columns * 2).map(|_| round(inputs.normal() * 1.5, dtype)).collect();
        let values = array(&[images, rows, columns, 2], numbers);
        check_samples(&x, &Sample { tensor: upload(&values, dtype, device)?, values }, config)?;
    }
    Ok(())
}

fn by_onnx(device: &Device) -> Outcome {
    let image = vec![3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0, -5.0, 3.0, 5.0, -8.0];
    let tensor = upload(&array(&[1, 1, 3, 4], image), DType::F32, device)?;
    let places = array(&[1, 1, 7, 2], PLACES.to_vec());
    let places = upload(&places, DType::F32, device)?;
    for (mode, padding, align_corners, samples) in BY_ONNX {
        let config = GridSampleConfig { mode, padding, align_corners };
        let expected = Expected::new(array(&[1, 1, 1, 7], samples.to_vec()), DType::F32);
        check("grid_sample_literal", &tensor.grid_sample(&places, config)?, &expected).map_err(|failed| {
            libtest_mimic::Failed::from(format!("{config:?}\n{}", failed.message().unwrap_or_default()))
        })?;
    }
    Ok(())
}

/// Coordinates that are not finite, or far outside: the samples are zeros or elements of the image.
fn far_away(device: &Device) -> Outcome {
    let image = array(&[1, 1, 2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let tensor = upload(&image, DType::F32, device)?;
    let largest = f64::from(f32::MAX);
    let far = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, largest, -largest];
    let places: Vec<f64> = far.into_iter().flat_map(|a| [a, 0.0, 0.0, a, a, a]).collect();
    let places = upload(&array(&[1, 5, 3, 2], places), DType::F32, device)?;
    for config in configs().filter(|config| config.mode != GridSampleMode::Bicubic) {
        let samples = tensor.grid_sample(&places, config)?;
        let values = download(&samples)?;
        let zeros = config.padding == GridSamplePadding::Zeros;
        let fine = |x: &f64| if zeros { *x == 0.0 } else { (1.0..=6.0).contains(x) };
        if !values.iter().all(fine) {
            return Err(format!("{config:?}: {values:?}").into());
        }
    }
    // The first and the last column in the middle row: PyTorch treats NaN as the first.
    let config =
        GridSampleConfig { mode: GridSampleMode::Nearest, padding: GridSamplePadding::Border, align_corners: true };
    let columns = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, largest, -largest].into_iter().flat_map(|a| [a, -1.0]);
    let columns = upload(&array(&[1, 1, 5, 2], columns.collect()), DType::F32, device)?;
    let expected = array(&[1, 1, 1, 5], vec![1.0, 3.0, 1.0, 3.0, 1.0]);
    check("grid_sample_nearest", &tensor.grid_sample(&columns, config)?, &Expected::new(expected, DType::F32))?;
    // Nothing is read out of bounds. Only for NaN are the bicubic samples specified.
    for padding in PADDINGS {
        let config = GridSampleConfig { mode: GridSampleMode::Bicubic, padding, align_corners: false };
        let values = download(&tensor.grid_sample(&places, config)?)?;
        if !values.iter().take(3).all(|x| x.is_nan()) {
            return Err(format!("{config:?}: {values:?}").into());
        }
    }
    Ok(())
}

pub fn add(suite: &mut Suite) {
    for config in configs() {
        let GridSampleConfig { mode, padding, align_corners } = config;
        let name = format!("{mode:?}_{padding:?}_{}", if align_corners { "corners" } else { "edges" }).to_lowercase();
        // Test few configurations in f16, because each one is a kernel.
        let of_f16 = mode == GridSampleMode::Bilinear || padding == GridSamplePadding::Zeros;
        for (dtype, places) in floats().map(|dtype| (dtype, dtype)) {
            let few = match dtype {
                DType::F16 => of_f16,
                // Tested below, with coordinates in another dtype.
                DType::BF16 => false,
                // One of each mode, padding and corner alignment.
                DType::F64 => mode as usize == padding as usize && align_corners == (mode == GridSampleMode::Bicubic),
                _ => true,
            };
            if !few && !full_tier() {
                continue;
            }
            suite.add(op(mode), format!("{dtype}::{name}"), move |device| {
                let shape = [2, 3, 5, 4];
                for layout in
                    [Layout::Contiguous, Layout::Unaligned, Layout::Transposed, Layout::Sliced, Layout::Broadcast]
                {
                    let x = shaped("grid_sample", &shape, layout, dtype, Domain::Normal, device)?;
                    check_samples(&x, &grid(&[2, 3, 7, 2], places, Layout::Contiguous, device)?, config)?;
                }
                let x = shaped("grid_sample", &shape, Layout::Contiguous, dtype, Domain::Normal, device)?;
                for layout in [Layout::Transposed, Layout::Sliced, Layout::Broadcast] {
                    check_samples(&x, &grid(&[2, 3, 7, 2], places, layout, device)?, config)?;
                }
                let one = shaped("grid_sample", &[1, 1, 1, 1], Layout::Contiguous, dtype, Domain::Normal, device)?;
                check_samples(&one, &grid(&[1, 5, 1, 2], places, Layout::Contiguous, device)?, config)?;
                for (x, places_shape) in
                    [([0, 3, 2, 2], [0, 4, 5, 2]), ([2, 0, 3, 3], [2, 4, 5, 2]), ([2, 3, 0, 3], [2, 0, 5, 2])]
                {
                    let x = shaped("grid_sample", &x, Layout::Contiguous, dtype, Domain::Normal, device)?;
                    check_samples(&x, &grid(&places_shape, places, Layout::Contiguous, device)?, config)?;
                }
                Ok(())
            });
        }
        if mode != GridSampleMode::Nearest {
            suite.add(op(mode), format!("f32::{name}_random"), move |device| check_random(config, DType::F32, device));
        }
    }
    suite.add("grid_sample", "f32::far_away", far_away);
    for (dtype, places) in [(DType::F16, DType::F32), (DType::F64, DType::F32), (DType::BF16, DType::F64)] {
        suite.add("grid_sample", format!("{dtype}::places_in_{places}"), move |device| {
            let x = shaped("grid_sample", &[2, 3, 5, 4], Layout::Contiguous, dtype, Domain::Normal, device)?;
            check_samples(&x, &grid(&[2, 3, 7, 2], places, Layout::Contiguous, device)?, GridSampleConfig::default())
        });
    }
    suite.add("grid_sample", "f64::random", |device| check_random(GridSampleConfig::default(), DType::F64, device));
    suite.add("grid_sample", "f32::onnx", by_onnx);
}
