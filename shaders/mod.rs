//! The kernels. Each family has one file: a configuration, and a plain function that writes the kernel for it.

pub(crate) mod blocks;
mod elements;
pub(crate) mod encoding;
pub(crate) mod epilogue;
pub(crate) mod expr;
pub(crate) mod fold;
pub(crate) mod interpolation;
pub(crate) mod pages;
pub(crate) mod parameters;
pub(crate) mod prologue;
pub(crate) mod rows;
pub(crate) mod tiles;
mod unit_sums;
pub(crate) mod window;
pub(crate) mod workgroup;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::shader::{KernelBuilder, Module, Target};
use parameters::Form;

/// A type of configuration that [`KernelConfig`] may hold.
pub(crate) trait Member: Into<KernelConfig> {
    /// Returns what a configuration holds, if it is of this type.
    fn of(config: &KernelConfig) -> Option<&Self>;
}

/// Generates the kernel of a configuration.
pub(crate) type Generate = fn(&KernelConfig, Target) -> Result<Module>;

/// A family of kernels. The code of a kernel depends on its configuration alone.
pub(crate) trait Family: Form + Member {
    /// A name for messages and traces.
    fn name(&self) -> String;

    /// Invocations per workgroup.
    fn workgroup(&self) -> u32;

    /// Writes the kernel.
    fn write(&self, k: &KernelBuilder);

    /// Estimates how many products or elements the kernel adds up. Returns 0 if memory traffic takes the time, not
    /// arithmetic.
    fn products(&self, _parameters: &Self::Host) -> u64 {
        0
    }

    /// What adds up the products.
    fn units(&self) -> Units {
        Units::Lanes
    }

    /// Returns how many bytes of each of its buffers the kernel touches at most. Buffers may be larger.
    fn touched(&self, _parameters: &Self::Host) -> u64 {
        u64::MAX
    }

    /// Estimates what a launch does.
    fn work(&self, parameters: &Self::Host) -> Work {
        Work { products: self.products(parameters), units: self.units(), touched: self.touched(parameters) }
    }

    /// Returns sample kernels of the family, for tests and for people who inspect kernels.
    fn samples() -> Vec<Self>;

    /// Generates the kernel of a configuration of this family: a [`Generate`], which a launch brings along. So a
    /// program contains the families that it launches, where [`KernelConfig::generate`] would add all others.
    fn generate(config: &KernelConfig, target: Target) -> Result<Module> {
        let wrong = || Error::Kernel { kernel: config.name(), message: "it is of another family".into() };
        Self::of(config).ok_or_else(wrong)?.written(target)
    }

    /// Generates the kernel.
    fn written(&self, target: Target) -> Result<Module> {
        let k = KernelBuilder::new(self.name(), target, self.workgroup());
        self.write(&k);
        k.finish()
    }
}

/// The units of a device that add up products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Units {
    /// Those that any kernel uses, with numbers of 32 bits or less.
    Lanes,
    /// The same with numbers of 64 bits.
    WideLanes,
    /// Matrix units.
    Matrix,
}

impl Units {
    /// The units for products of `dtype`, if matrix units do not take them.
    fn of(dtype: DType) -> Units {
        if dtype.size_in_bytes() == 8 { Units::WideLanes } else { Units::Lanes }
    }
}

/// An estimate of what a launch does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// See [`Family::products`].
    pub products: u64,
    /// See [`Family::units`].
    pub units: Units,
    /// See [`Family::touched`].
    pub touched: u64,
}

impl Work {
    /// What is known of a kernel that is not of this crate.
    pub const UNKNOWN: Work = Work { products: 0, units: Units::Lanes, touched: u64::MAX };

    /// Estimates how many products of `f32` take the same time.
    pub fn as_narrow_products(&self) -> u64 {
        match self.units {
            Units::Lanes => self.products,
            // Devices have few units for 64 bits, or none.
            Units::WideLanes => self.products.saturating_mul(16),
            // Matrix units are at least eight times as fast as other units.
            Units::Matrix => self.products / 8,
        }
    }
}

/// Returns the product of some sizes, for estimates.
fn volume<'a>(sizes: impl IntoIterator<Item = &'a usize>) -> u64 {
    sizes.into_iter().fold(1, |product, &n| product.saturating_mul(n as u64))
}

macro_rules! families {
    ($($module:ident: $($family:ident),+;)*) => {
        $(pub(crate) mod $module;)*

        /// Identifies a kernel: its family, and everything that its code depends on.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub(crate) enum KernelConfig {
            $($($family($module::$family),)+)*
        }

        $($(
            impl From<$module::$family> for KernelConfig {
                fn from(config: $module::$family) -> Self {
                    KernelConfig::$family(config)
                }
            }

            impl Member for $module::$family {
                fn of(config: &KernelConfig) -> Option<&Self> {
                    match config {
                        KernelConfig::$family(config) => Some(config),
                        _ => None,
                    }
                }
            }
        )+)*

        impl KernelConfig {
            /// A name for messages and traces.
            pub fn name(&self) -> String {
                match self {
                    $($(KernelConfig::$family(config) => config.name(),)+)*
                }
            }

            /// The words of the parameter block.
            #[cfg(test)]
            pub fn parameter_words(&self) -> usize {
                match self {
                    $($(KernelConfig::$family(config) => config.parameter_words(),)+)*
                }
            }

            /// Generates the kernel.
            pub fn generate(&self, target: Target) -> Result<Module> {
                match self {
                    $($(KernelConfig::$family(config) => config.written(target),)+)*
                }
            }

            /// Returns the targets that have what the kernel requires. Only Vulkan has its own memory model, which
            /// matrices follow, too.
            pub fn targets(&self, targets: &[Target]) -> Result<Vec<Target>> {
                let everywhere = !self.generate(Target::VULKAN)?.requires.memory_model;
                Ok(targets.iter().copied().filter(|&target| everywhere || target == Target::VULKAN).collect())
            }

            /// Returns the samples of all families.
            pub fn samples() -> Vec<KernelConfig> {
                let mut samples = Vec::new();
                $($(samples.extend($module::$family::samples().into_iter().map(KernelConfig::from));)+)*
                samples
            }
        }
    };
}

families! {
    assign: Assign;
    attention: Attention;
    block_planes: BlockPlanes;
    block_product: BlockProduct;
    cache_append: CacheAppend;
    cat: Cat;
    compact: Compact;
    conv: Conv;
    depthwise: Depthwise;
    dequantize: Dequantize;
    elementwise: Elementwise;
    gather: Gather;
    grid_sample: GridSample;
    look_back: LookBack;
    matmul: Matmul;
    next_token: NextToken;
    normalize: Normalize;
    pad: Pad;
    pool: Pool;
    quantize: Quantize;
    random: Random;
    reduce: Reduce;
    resize: Resize;
    rotary: Rotary;
    sample: Sample;
    scan: Scan;
    scatter: Scatter;
    sort: SortCount, SortMerge, SortRow, SortScatter, SortSelect, SortShort, SortTake;
    store: Store;
    transpose: Transpose;
}

#[cfg(test)]
mod tests {
    use super::conv::Conv;
    use super::encoding::Encoding;
    use super::matmul::{self, Matmul, SizeParameters};
    use super::parameters::{Strided, Words};
    use super::window::WindowParameters;
    use super::*;
    use crate::base::shape::Dims;

    fn view(rank: usize) -> Strided {
        Strided { offset: 0, strides: std::iter::repeat_n(1, rank).collect() }
    }

    fn product(sizes: [usize; 4]) -> matmul::Parameters {
        let [batches, m, n, depth] = sizes;
        let sizes = SizeParameters { batches, m, n, depth, lengths: Dims::new(), a: view(2), b: view(2) };
        matmul::Parameters {
            sizes,
            windows: None,
            matrix: None,
            eps: None,
            behind_gates: None,
            last_depth: None,
            epilogue: None,
        }
    }

    /// A kernel with an epilogue must not pad rows: a tensor has no room for that.
    #[test]
    fn padded_rows_are_not_finished() {
        let is_on_units = |config: &Matmul| matches!(config.tile, matmul::MatmulTile::MatrixUnits(..));
        let config = Matmul::samples().into_iter().find(is_on_units).unwrap();
        let stores = |dtype, n| epilogue::Finishing::stores(&config, dtype, &product([1, 33, n, 64]));
        assert!(stores(DType::F16, 24) && stores(DType::F32, 20));
        assert!(!stores(DType::F16, 20) && !stores(DType::F32, 22) && !stores(DType::I64, 24));
    }

    #[test]
    fn products_are_estimated_by_the_parameters() {
        let registers = matmul::MatmulTile::Registers { columns: 1 };
        let dense = Matmul::of(Encoding::Dense(DType::F32), DType::F32, 0, registers);
        assert_eq!(dense.products(&product([2, 3, 5, 7])), 210);
        assert_eq!(dense.products(&product([u32::MAX as usize; 4])), u64::MAX);
        let words = Matmul::of(Encoding::Words(DType::I8), DType::I32, 0, registers);
        assert_eq!(words.products(&product([1, 3, 5, 7])), 420);
        let tile = tiles::ConvTile::Registers { rows: 1, columns: 1 };
        let dtype = DType::F32;
        let (transposed, bias, slides, clipped, prologue, epilogue) = (false, false, false, false, None, None);
        let conv = Conv { dtype, axes: 2, transposed, bias, tile, slides, clipped, prologue, epilogue };
        let window =
            |output, input, kernel| WindowParameters { output, input, kernel, stride: 1, dilation: 1, before: 0 };
        let parameters = conv::Parameters {
            images: 2,
            groups: 1,
            rows: 3,
            channels: 7,
            windows: [window(11, 13, 3), window(17, 19, 5)].into_iter().collect(),
            steps: Default::default(),
            x: view(4),
            weight_offset: 0,
            bias_offset: None,
            prologue: None,
            epilogue: None,
        };
        assert_eq!(conv.products(&parameters), 42 * 11 * 3 * 17 * 5);
        assert_eq!(dense.work(&product([1, 8, 10, 1])).as_narrow_products(), 80);
        let wide = Matmul::of(Encoding::Dense(DType::F64), DType::F64, 0, registers);
        assert_eq!(wide.work(&product([1, 8, 10, 1])).as_narrow_products(), 16 * 80);
        let transposed = Conv { transposed: true, ..conv };
        assert_eq!(transposed.products(&parameters), 42 * 13 * 3 * 19 * 5);
    }

    #[test]
    fn words_stand_in_the_order_of_the_declaration() {
        let config = gather::Gather {
            dtype: DType::F32,
            index: DType::U32,
            rank: 1,
            by_units: false,
            prologue: None,
            epilogue: None,
        };
        let parameters = gather::Parameters {
            count: 1,
            length: 2,
            stride: -3,
            lengths: [4].into_iter().collect(),
            x: Strided { offset: 5, strides: [-6].into_iter().collect() },
            index: Strided { offset: 7, strides: [8].into_iter().collect() },
            prologue: None,
            epilogue: None,
        };
        let mut words = Words::new();
        config.push(&parameters, &mut words);
        assert_eq!(words.len(), config.parameter_words());
        assert_eq!(words.as_slice(), [1, 2, -3i32 as u32, 4, 5, -6i32 as u32, 7, 8]);
    }
}
