//! [`Features`]: what a device has, or what a kernel needs.

use crate::base::dtype::DType;
use std::fmt;

/// Optional abilities: those that a device has, or those that a kernel needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Features {
    /// 64-bit integers in kernels: arithmetic on tensors of `i64`.
    pub i64: bool,
    /// 64-bit floats in kernels: arithmetic on tensors of `f64`.
    pub f64: bool,
    /// 16-bit floats in storage buffers and in arithmetic.
    pub f16: bool,
    /// Subgroup arithmetic, ballot and shuffle in compute kernels.
    pub subgroups: bool,
    /// Matrix units, as far as matrix products use them: in subgroups of 32 lanes.
    pub matrix_units: MatrixUnits,
    /// An instruction for dot products of four packed bytes, signed and unsigned, that is faster than single products.
    /// [`Value::dot_i8`](crate::shader::Value::dot_i8) then uses it. Without it, `dot_i8` multiplies byte by byte.
    pub integer_dot_products: bool,
    /// Atomic operations on 32-bit integers.
    pub atomics: bool,
    /// Atomic sums of `f32` in buffers.
    pub float_atomics: bool,
    /// Vulkan's own memory model. With it, workgroups of a kernel can hand results to each other.
    pub memory_model: bool,
    /// The device records when commands start and end: [`Device::profile`](crate::Device::profile).
    pub timestamps: bool,
}

/// The sizes of products that a GPU's matrix units compute. Each dtype has the size `[m, n, k]` of a product of `m x k`
/// by `k x n` elements. `None`: the units do not take the dtype. If kernels may choose the size, it is the size that
/// they choose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MatrixUnits {
    /// Products of `f16`, added up in `f32`.
    pub f16: Option<[u32; 3]>,
    /// Products of `bf16`, added up in `f32`.
    pub bf16: Option<[u32; 3]>,
    /// Products of `i8`, added up in `i32`.
    pub i8: Option<[u32; 3]>,
    /// Products of `u8`, added up in `u32`.
    pub u8: Option<[u32; 3]>,
    /// Kernels can also reduce the rows of results, and use results as factors: both parts of
    /// `VK_NV_cooperative_matrix2`.
    pub reductions: bool,
}

impl MatrixUnits {
    /// Returns the size of products of a dtype.
    pub(crate) fn of(mut self, dtype: DType) -> Option<[u32; 3]> {
        *self.of_mut(dtype)?
    }

    pub(crate) fn of_mut(&mut self, dtype: DType) -> Option<&mut Option<[u32; 3]>> {
        match dtype {
            DType::F16 => Some(&mut self.f16),
            DType::BF16 => Some(&mut self.bf16),
            DType::I8 => Some(&mut self.i8),
            DType::U8 => Some(&mut self.u8),
            _ => None,
        }
    }

    /// Whether `available` has units of all these sizes.
    fn are_among(&self, available: &MatrixUnits) -> bool {
        DType::ALL.into_iter().all(|dtype| self.of(dtype).is_none_or(|size| available.multiply(dtype, size)))
            && (available.reductions || !self.reductions)
    }

    /// Whether the units compute products of this size. If kernels choose the size, they choose two of the units' own
    /// products side by side: `[m, 2 n, k]`. The units' own size, with an n of 16, works there too.
    pub(crate) fn multiply(&self, dtype: DType, needed @ [m, n, k]: [u32; 3]) -> bool {
        self.of(dtype).is_some_and(|size| size == needed || (n == 16 && size == [m, 2 * n, k]))
    }
}

impl Features {
    /// The first feature that `self` needs and `available` lacks.
    pub(crate) fn missing_from(&self, available: &Features) -> Option<&'static str> {
        if self.f64 && !available.f64 {
            Some("64-bit floats in kernels")
        } else if self.i64 && !available.i64 {
            Some("64-bit integers in kernels")
        } else if self.f16 && !available.f16 {
            Some("16-bit floats in kernels")
        } else if self.subgroups && !available.subgroups {
            Some("subgroup operations")
        } else if !self.matrix_units.are_among(&available.matrix_units) {
            Some("matrix units")
        } else if self.integer_dot_products && !available.integer_dot_products {
            Some("integer dot products")
        } else if self.atomics && !available.atomics {
            Some("atomic operations")
        } else if self.float_atomics && !available.float_atomics {
            Some("atomic sums of floats")
        } else if self.memory_model && !available.memory_model {
            Some("Vulkan's memory model")
        } else if self.timestamps && !available.timestamps {
            Some("timestamps")
        } else {
            None
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.f16, "f16"),
            (self.i64, "i64"),
            (self.f64, "f64"),
            (self.subgroups, "subgroups"),
            (self.matrix_units != MatrixUnits::default(), "matrix units"),
            (self.integer_dot_products, "integer dot products"),
            (self.atomics, "atomics"),
            (self.float_atomics, "float atomics"),
            (self.memory_model, "memory model"),
            (self.timestamps, "timestamps"),
        ];
        let present: Vec<_> = names.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        f.pad(&if present.is_empty() { "none".to_string() } else { present.join(", ") })
    }
}
