//! General matrix products as in BLAS, `alpha op(A) op(B) + beta C`: of tensors, of lists of tensors, and of matrices
//! in flat buffers.

use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::base::shape::Shape;
use crate::base::word::Word;
use crate::kernels::expr::BinaryOp;
use crate::lazy::ExpressionBuilder;
use crate::tensor::Tensor;
use std::borrow::Borrow;

/// What [`Tensor::gemm`] computes: `alpha op(A) op(B) + beta C`, where `op` may transpose. The default is the product.
///
/// ```
/// use marquetry::Gemm;
/// let sum = Gemm::default().trans_b(true).beta(1.0);
/// assert_ne!(sum, Gemm::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gemm {
    trans_a: bool,
    trans_b: bool,
    alpha: f64,
    beta: f64,
}

impl Default for Gemm {
    fn default() -> Self {
        Gemm { trans_a: false, trans_b: false, alpha: 1.0, beta: 0.0 }
    }
}

impl Gemm {
    /// Sets whether the first matrix is transposed.
    #[must_use]
    pub fn trans_a(mut self, trans_a: bool) -> Self {
        self.trans_a = trans_a;
        self
    }

    /// Sets whether the second matrix is transposed.
    #[must_use]
    pub fn trans_b(mut self, trans_b: bool) -> Self {
        self.trans_b = trans_b;
        self
    }

    /// Sets what the product is multiplied by. If it is 0, no product is computed: NaN in the matrices plays no role.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets what C is multiplied by. If it is 0, C is not read.
    #[must_use]
    pub fn beta(mut self, beta: f64) -> Self {
        self.beta = beta;
        self
    }
}

/// Whether the elements of a row lie side by side, or those of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatrixOrder {
    /// Rows, as in C.
    #[default]
    RowMajor,
    /// Columns, as in Fortran, and so in BLAS, cuBLAS and rocBLAS.
    ColumnMajor,
}

/// Where the matrices of a batch lie in a flat buffer, counted in elements.
///
/// ```
/// use marquetry::MatrixBatch;
/// // Rows of 8 elements, of which a matrix takes some from the fourth on; the next matrix is 16 rows below.
/// let columns = MatrixBatch::new(8).offset(3).stride(16 * 8);
/// assert_ne!(columns, MatrixBatch::new(8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixBatch {
    leading: usize,
    stride: usize,
    offset: usize,
}

impl MatrixBatch {
    /// Returns matrices with this leading dimension: the distance between rows, or between columns in
    /// [`MatrixOrder::ColumnMajor`]. By default the first one starts at the first element, and all are this one.
    pub fn new(leading: usize) -> Self {
        MatrixBatch { leading, stride: 0, offset: 0 }
    }

    /// Sets the distance between one matrix and the next. If it is 0, all are one; those of C must not be.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.stride = stride;
        self
    }

    /// Sets the place of the first matrix.
    #[must_use]
    pub fn offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }
}

/// What [`Tensor::gemm_strided_batched`] computes: `gemmStridedBatched` of cuBLAS and rocBLAS. With a batch of 1 it is
/// `gemm` of BLAS. By default it is one product of matrices in row-major order without gaps.
///
/// ```
/// use marquetry::{Gemm, GemmStridedBatched, MatrixBatch, MatrixOrder};
/// let call = GemmStridedBatched::new([2, 4, 3])
///     .gemm(Gemm::default().trans_b(true))
///     .order(MatrixOrder::ColumnMajor)
///     .batch(10)
///     .c(MatrixBatch::new(16).stride(64));
/// assert_ne!(call, GemmStridedBatched::new([2, 4, 3]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GemmStridedBatched {
    gemm: Gemm,
    order: MatrixOrder,
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    a: Option<MatrixBatch>,
    b: Option<MatrixBatch>,
    c: Option<MatrixBatch>,
}

impl GemmStridedBatched {
    /// Returns a call for one product of an `m` x `k` matrix `op(A)` and a `k` x `n` matrix `op(B)`.
    pub fn new([m, n, k]: [usize; 3]) -> Self {
        GemmStridedBatched {
            gemm: Gemm::default(),
            order: MatrixOrder::RowMajor,
            m,
            n,
            k,
            batch: 1,
            a: None,
            b: None,
            c: None,
        }
    }

    /// Sets factors and transpositions.
    #[must_use]
    pub fn gemm(mut self, gemm: Gemm) -> Self {
        self.gemm = gemm;
        self
    }

    /// Sets how all matrices lie.
    #[must_use]
    pub fn order(mut self, order: MatrixOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets the number of products.
    #[must_use]
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Sets where A is: `m` x `k`, or `k` x `m` if it is transposed.
    #[must_use]
    pub fn a(mut self, a: MatrixBatch) -> Self {
        self.a = Some(a);
        self
    }

    /// Sets where B is: `k` x `n`, or `n` x `k` if it is transposed.
    #[must_use]
    pub fn b(mut self, b: MatrixBatch) -> Self {
        self.b = Some(b);
        self
    }

    /// Sets where C is: `m` x `n`.
    #[must_use]
    pub fn c(mut self, c: MatrixBatch) -> Self {
        self.c = Some(c);
        self
    }
}

impl Tensor {
    /// Returns `alpha op(self) op(rhs) + beta c` for matrices or batches of matrices: see [`Gemm`]. Batches and `c` are
    /// broadcast to the shape of the product. Operands may have any strides. For `f16` and `bf16`, factors and sums are
    /// computed in `f32` and rounded once.
    ///
    /// ```
    /// # use marquetry::{Device, Gemm, Tensor};
    /// # let device = Device::best()?;
    /// let a = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// let c = Tensor::new([100f32, 200.0], &device)?;
    /// let y = a.gemm(&a, Some(&c), Gemm::default().trans_b(true).alpha(2.0).beta(0.5))?;
    /// assert_eq!(y.to_vec::<f32>()?, [60.0, 122.0, 72.0, 150.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::RankMismatch`] below two axes; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::InvalidArgument`] if `beta` is not 0 but there is no `c`, or if an integer
    /// dtype cannot hold a factor; [`Error::UnsupportedDType`] for 8-bit integers and `bool`.
    pub fn gemm(&self, rhs: &Tensor, c: Option<&Tensor>, config: Gemm) -> Result<Tensor> {
        config.run(self, rhs, c, "gemm")
    }

    /// Returns the result of [`gemm`](Self::gemm) for each pair of matrices in two lists. `c` may be empty if `beta` is
    /// 0. The products do not wait for one another, and may have different shapes.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Gemm, Tensor};
    /// # let device = Device::best()?;
    /// let a = [Tensor::ones((2, 3), DType::F32, &device)?, Tensor::ones((4, 5), DType::F32, &device)?];
    /// let b = [Tensor::ones((3, 2), DType::F32, &device)?, Tensor::ones((5, 1), DType::F32, &device)?];
    /// let products = Tensor::gemm_batched(&a, &b, &[], Gemm::default())?;
    /// assert_eq!(products[1].to_vec::<f32>()?, [5.0; 4]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the lists differ in length; else as [`gemm`](Self::gemm).
    pub fn gemm_batched<T: Borrow<Tensor>>(a: &[T], b: &[T], c: &[T], config: Gemm) -> Result<Vec<Tensor>> {
        const OP: &str = "gemm_batched";
        if a.len() != b.len() || (!c.is_empty() && c.len() != a.len()) {
            let message = format!(
                "{} matrices a, {} matrices b and {} matrices c; give as many of each, or no c",
                a.len(),
                b.len(),
                c.len()
            );
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let product = |(i, (a, b)): (usize, (&T, &T))| config.run(a.borrow(), b.borrow(), c.get(i).map(T::borrow), OP);
        a.iter().zip(b).enumerate().map(product).collect()
    }

    /// Returns `c` with its matrices replaced by `alpha op(A) op(B) + beta C`. [`GemmStridedBatched`] tells where the
    /// matrices lie in the elements of `a`, `b` and `c`, which are taken in row-major order whatever their shapes.
    /// Elements between the rows and between the matrices of `c` stay as they are. As in
    /// [`slice_assign`](Self::slice_assign), `c` is replaced in place if nobody else holds it.
    ///
    /// ```
    /// # use marquetry::{Device, GemmStridedBatched, MatrixBatch, MatrixOrder, Tensor};
    /// # let device = Device::best()?;
    /// // Columns of 2 elements, of which the leading dimension of c leaves a third one alone.
    /// let a = Tensor::new([1f32, 3.0, 2.0, 4.0], &device)?;
    /// let c = Tensor::new([0f32, 0.0, 9.0, 0.0, 0.0, 9.0], &device)?;
    /// let call = GemmStridedBatched::new([2, 2, 2]).order(MatrixOrder::ColumnMajor).c(MatrixBatch::new(3));
    /// let c = Tensor::gemm_strided_batched(&a, &a, c, call)?;
    /// assert_eq!(c.to_vec::<f32>()?, [7.0, 15.0, 9.0, 10.0, 22.0, 9.0]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a leading dimension is smaller than a row (or a column), if a matrix reaches
    /// beyond its buffer, or if matrices of `c` overlap; [`Error::DTypeMismatch`], [`Error::DeviceMismatch`];
    /// [`Error::UnsupportedDType`] for 8-bit integers and `bool`; [`Error::OutOfMemory`] for a copy.
    pub fn gemm_strided_batched(a: &Tensor, b: &Tensor, c: Tensor, call: GemmStridedBatched) -> Result<Tensor> {
        const OP: &str = "gemm_strided_batched";
        a.check_same_device(&c, OP)?;
        a.check_same_dtype(&c, OP)?;
        let GemmStridedBatched { gemm, m, n, k, .. } = call;
        let stored = |rows, columns, transposed| if transposed { [columns, rows] } else { [rows, columns] };
        let matrices = |buffer: &Tensor, place: Option<MatrixBatch>, sizes| -> Result<Tensor> {
            let buffer = buffer.contiguous()?;
            let place = place.unwrap_or_else(|| call.without_gaps(sizes));
            Ok(buffer.with_layout(call.layout(buffer.layout(), place, sizes)?))
        };
        let a = matrices(a, call.a, stored(m, k, gemm.trans_a))?;
        let b = matrices(b, call.b, stored(k, n, gemm.trans_b))?;
        let c = if c.is_contiguous() { c } else { c.copied()? };
        let place = call.c.unwrap_or_else(|| call.without_gaps([m, n]));
        let part = call.layout(c.layout(), place, [m, n])?;
        if part.may_overlap() {
            let message = format!("the matrices of c, {m} x {n} with {place:?}, overlap");
            return Err(Error::InvalidArgument { op: OP, message });
        }
        let addend = (gemm.beta != 0.0).then(|| c.with_layout(part.clone()));
        let result = gemm.run(&a, &b, addend.as_ref(), OP)?;
        // `c` is written in place only if nobody else holds its elements.
        drop(addend);
        c.assign(|layout| call.layout(layout, place, [m, n]), &result, OP)
    }
}

impl Gemm {
    fn run(&self, a: &Tensor, b: &Tensor, c: Option<&Tensor>, op: &'static str) -> Result<Tensor> {
        for side in [a, b] {
            if side.rank() < 2 {
                return Err(Error::RankMismatch { op, expected: "2 or more", shape: side.shape().clone() });
            }
        }
        a.check_products(op)?;
        let a = if self.trans_a { a.t()? } else { a.clone() };
        let b = if self.trans_b { b.t()? } else { b.clone() };
        let (shape, _) = a.check_factors(&b, op)?;
        let mut terms = Vec::new();
        let product;
        if self.alpha != 0.0 {
            // The product is rounded at once only if nothing follows.
            let output = if self.alpha == 1.0 && self.beta == 0.0 { a.dtype() } else { a.dtype().widened() };
            product = a.product(&b, output, op)?;
            terms.push((&product, self.alpha));
        }
        if let Some(c) = c {
            a.check_same_device(c, op)?;
            a.check_same_dtype(c, op)?;
            c.layout().broadcast_to(&shape, op)?;
            terms.extend((self.beta != 0.0).then_some((c, self.beta)));
        } else if self.beta != 0.0 {
            let message =
                format!("beta is {}, but there is no c to be multiplied by it; give c, or a beta of 0", self.beta);
            return Err(Error::InvalidArgument { op, message });
        }
        weighted_sum(&terms, &a, &shape, op)
    }
}

impl GemmStridedBatched {
    /// Returns the elements of a row of `sizes` rows and columns, or of a column in column-major order.
    fn line(&self, [rows, columns]: [usize; 2]) -> usize {
        match self.order {
            MatrixOrder::RowMajor => columns,
            MatrixOrder::ColumnMajor => rows,
        }
    }

    /// Matrices of `sizes` rows and columns one behind the other.
    fn without_gaps(&self, sizes: [usize; 2]) -> MatrixBatch {
        MatrixBatch::new(self.line(sizes)).stride(sizes[0].saturating_mul(sizes[1]))
    }

    /// The matrices of `sizes` rows and columns at a place in a contiguous buffer.
    fn layout(&self, buffer: &Layout, place: MatrixBatch, sizes: [usize; 2]) -> Result<Layout> {
        const OP: &str = "gemm_strided_batched";
        let (row_major, line) = (self.order == MatrixOrder::RowMajor, self.line(sizes));
        if place.leading < line {
            let lines = if row_major { "rows" } else { "columns" };
            let message =
                format!("the leading dimension {} is less than the {line} elements of {lines}", place.leading);
            return Err(Error::InvalidArgument { op: OP, message });
        }
        // A distance that saturates here reaches beyond the buffer.
        let [leading, stride] = [place.leading, place.stride].map(|n| isize::try_from(n).unwrap_or(isize::MAX));
        let [row, column] = if row_major { [leading, 1] } else { [1, leading] };
        buffer.strided([self.batch, sizes[0], sizes[1]].into(), &[stride, row, column], place.offset, OP)
    }
}

/// Returns the sum of tensors times numbers, broadcast to a shape. The sum is computed in the dtype in which sums of
/// `like` are accumulated, and rounded once to the dtype of `like`.
pub(crate) fn weighted_sum(terms: &[(&Tensor, f64)], like: &Tensor, shape: &Shape, op: &'static str) -> Result<Tensor> {
    let (dtype, wide) = (like.dtype(), like.dtype().widened());
    if let [(term, 1.0)] = terms
        && term.shape() == shape
    {
        return term.to_dtype(dtype);
    }
    let mut builder = match terms.first() {
        Some((first, _)) if first.shape() == shape => ExpressionBuilder::in_order_of(*first),
        _ => ExpressionBuilder::new(shape.clone(), like.device()),
    };
    let mut sum = None;
    for &(term, factor) in terms {
        let value = builder.tensor(term, op)?;
        let mut value = builder.cast(wide, value);
        if factor != 1.0 {
            let factor = builder.scalar(Word::of(factor, wide, op)?);
            value = builder.binary(BinaryOp::Mul, value, factor);
        }
        sum = Some(sum.map_or(value, |sum| builder.binary(BinaryOp::Add, sum, value)));
    }
    let Some(sum) = sum else { return Tensor::zeros(shape, dtype, like.device()) };
    let rounded = builder.cast(dtype, sum);
    builder.finish(rounded, op)
}
