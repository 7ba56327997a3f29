//! [`Encoding`]: how the elements of an operand lie in its buffer, and the [`Loader`] that reads them.

use super::blocks::{BlockMatrix, Blocks, DeclaredMatrix};
use super::elements::{Elements, Quads, Runs};
use crate::base::block_format::BlockFormat;
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Type, Value};

/// How the elements of an operand lie in its buffer. A factor is what a kernel multiplies at a time. Offsets, strides
/// and lengths of the operand count factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    /// Each factor is an element of this dtype.
    Dense(DType),
    /// Each factor is a word of four neighbouring bytes of this dtype, for dot products of words.
    Words(DType),
    /// Each factor is a number of a quantised matrix, unpacked to `f32`. Neighbours are read by fours, along the rows.
    Blocks(BlockFormat),
}

/// How much of an operand a tile loads at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Width {
    /// A factor.
    One,
    /// Four factors, as a vector.
    Four,
    /// The factors in this many words.
    Words(u32),
}

/// Reads an operand, widened to the type in which it is multiplied. All tiles of matrix products read through it.
#[derive(Clone)]
pub(super) struct Loader<'k> {
    k: &'k KernelBuilder,
    source: Source<'k>,
}

#[derive(Clone)]
enum Source<'k> {
    One(Elements<'k>),
    Four(Quads<'k>),
    Words(Runs<'k>),
    Blocks(Blocks<'k>, BlockFormat),
}

impl Encoding {
    /// The dtype of the elements.
    pub const fn dtype(self) -> DType {
        match self {
            Encoding::Dense(dtype) | Encoding::Words(dtype) => dtype,
            Encoding::Blocks(_) => DType::F32,
        }
    }

    /// The number of elements in a factor.
    pub const fn per_factor(self) -> usize {
        match self {
            Encoding::Dense(_) | Encoding::Blocks(_) => 1,
            Encoding::Words(_) => 4,
        }
    }

    /// The dtype of the factors.
    pub const fn factor(self) -> DType {
        match self {
            Encoding::Dense(dtype) => dtype,
            Encoding::Words(_) => DType::U32,
            Encoding::Blocks(_) => DType::F32,
        }
    }

    /// The form of the parameters of a quantised matrix, if it is one.
    pub(super) fn matrix(self) -> Option<BlockMatrix> {
        if let Encoding::Blocks(format) = self { Some(BlockMatrix(format)) } else { None }
    }

    /// The type of a factor in a kernel.
    pub(super) fn factor_type(self) -> Type {
        Type { scalar: self.factor().compute_scalar(), lanes: 1 }
    }

    /// Returns `sum + a b` of factors, in every lane.
    pub(super) fn add_product<'k>(self, sum: Value<'k>, a: Value<'k>, b: Value<'k>) -> Value<'k> {
        match self {
            Encoding::Words(DType::I8) => a.dot_i8(b, sum),
            Encoding::Words(_) => a.dot_u8(b, sum),
            _ if a.ty().is_float() => a.fma(b, sum),
            _ => sum + a * b,
        }
    }

    /// Declares the buffer of an operand. `matrix` has the parameters of a quantised one.
    pub(super) fn loader<'k>(
        self,
        k: &'k KernelBuilder,
        name: &str,
        width: Width,
        matrix: Option<&DeclaredMatrix<'k>>,
    ) -> Loader<'k> {
        if let (Encoding::Blocks(format), Some(matrix)) = (self, matrix) {
            return Loader { k, source: Source::Blocks(Blocks::new(k, format, matrix.clone()), format) };
        }
        let factor = self.factor();
        let source = match width {
            Width::One => Source::One(Elements::input(k, name, factor)),
            Width::Four => Source::Four(Quads::input(k, name, factor)),
            Width::Words(words) => Source::Words(Runs::input(k, name, factor, words)),
        };
        Loader { k, source }
    }
}

impl<'k> Loader<'k> {
    /// The number of factors that are loaded at a time.
    pub fn length(&self) -> u32 {
        match &self.source {
            Source::One(_) => 1,
            Source::Four(_) | Source::Blocks(..) => 4,
            Source::Words(runs) => runs.length(),
        }
    }

    /// Returns where a factor of a quantised matrix is. `None` for other operands, whose strides tell.
    pub fn place_in_blocks(&self, row: Value<'k>, column: Value<'k>) -> Option<Value<'k>> {
        if let Source::Blocks(blocks, _) = &self.source { Some(blocks.element(row, column)) } else { None }
    }

    /// Loads the factors at a place: a number, or a vector of them. Places count loads of `length` factors.
    pub fn load(&self, place: Value<'k>) -> Value<'k> {
        match &self.source {
            Source::One(elements) => elements.load(place),
            Source::Four(quads) => quads.load(self.k, place),
            Source::Blocks(blocks, format) => {
                let fours = format.block_elements() as u32 / 4;
                blocks.neighbours(place / fours, place % fours * 4, 1).exact()[0]
            }
            Source::Words(_) => self.k.vector(&self.load_each(place)),
        }
    }

    /// Loads the same factors, each as a number.
    pub fn load_each(&self, place: Value<'k>) -> Vec<Value<'k>> {
        match &self.source {
            Source::One(elements) => vec![elements.load(place)],
            Source::Four(_) | Source::Blocks(..) => self.load(place).lanes(),
            Source::Words(runs) => runs.load(place),
        }
    }

    /// Loads the same factors. Words stay as they are in memory, to be [unpacked](Self::unpack) later.
    pub fn load_packed(&self, place: Value<'k>) -> Value<'k> {
        if let Source::Words(runs) = &self.source { runs.load_packed(place) } else { self.load(place) }
    }

    /// Returns the factors of a packed load, each as a number.
    pub fn unpack(&self, packed: Value<'k>) -> Vec<Value<'k>> {
        if let Source::Words(runs) = &self.source { runs.unpack(packed) } else { packed.lanes() }
    }
}
