//! Pooling: folds each window of the spatial axes to one number. Each invocation folds four consecutive windows.

use super::elements::{Elements, lowest, take_quad_apart};
use super::epilogue::{self, Epilogue, Finishing, Outputs};
use super::parameters::{Each, Float, Form, Size, View, parameters, times};
use super::window::{DeclaredWindow, WindowForm};
use super::{Family, volume};
use crate::base::dtype::DType;
use crate::shader::{KernelBuilder, Scalar, Type, Value};

/// Invocations per workgroup.
pub(crate) const WORKGROUP: u32 = 64;

/// The number that a window is folded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PoolOp {
    Max,
    Average {
        /// True if the window's padding counts as zeros. If not, padding does not count.
        padding_counts: bool,
    },
    /// The p-norm.
    Norm,
}

/// Where the windows of an axis are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Windows {
    Sliding,
    /// Window `q` goes from `floor(q input / output)` to `ceil((q + 1) input / output)`. The kernel is the length of
    /// the longest window.
    Adaptive,
}

/// Pooling over `axes` spatial axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    pub op: PoolOp,
    pub windows: Windows,
    pub dtype: DType,
    pub axes: usize,
    /// The expression of the results.
    pub epilogue: Option<Box<Epilogue>>,
}

parameters! {
    config: Pool;
    host: Parameters;
    device: Declared;
    /// The number of elements of the output.
    count: Size,
    channels: Size,
    /// The spatial axes.
    axes: Each<AxisForm> = times(config.axes),
    x: View = View(2 + config.axes),
    /// The p of a norm.
    p: Option<Float> = (config.op == PoolOp::Norm).then_some(Float(config.dtype)),
    epilogue: Option<Epilogue> => config.epilogue.as_deref(),
}

/// The form of a spatial axis.
#[derive(Default)]
pub(crate) struct AxisForm;

parameters! {
    config: AxisForm;
    host: AxisParameters;
    device: DeclaredAxis;
    window: WindowForm,
    /// The padding after the input.
    after: Size,
}

/// One spatial axis. Numbers that differ between the four windows are vectors with a lane per window.
struct Axis<'k> {
    /// The most elements that a window has in the input.
    most: Value<'k>,
    dilation: Value<'k>,
    stride_in_memory: Value<'k>,
    /// Each window's first element in the input, and the end of its elements in the input.
    start: Value<'k>,
    end: Value<'k>,
    /// How many elements count for an average.
    counted: Value<'k>,
}

/// Indices in the buffer, and whether each element is inside.
type Sources<'k> = (Value<'k>, Option<Value<'k>>);

impl Pool {
    /// Returns an axis for the windows at places `q`.
    fn axis<'k>(&self, axis: &DeclaredAxis<'k>, stride_in_memory: Value<'k>, q: Value<'k>) -> Axis<'k> {
        let DeclaredWindow { output, input, kernel, stride, dilation, before } = axis.window;
        let (most, start, end, counted) = match self.windows {
            Windows::Adaptive => {
                let (start, end) = (q * input / output, ((q + 1) * input + (output - 1)) / output);
                (kernel, start, end, end - start)
            }
            Windows::Sliding => {
                // Counted from the start of the padding.
                let from = q * stride;
                let counted = match self.op {
                    PoolOp::Average { padding_counts: true } => (from + kernel).min(before + input + axis.after) - from,
                    _ => (from + kernel).min(before + input) - from.max(before),
                };
                // The loop visits no padding: there may be far more of it than input.
                let first = match self.op {
                    PoolOp::Max => {
                        // A signed difference, because Intel's offline compiler (22.43) fails on differences that
                        // saturate at 0.
                        let missing = (before - from).bitcast(Type { scalar: Scalar::I32, lanes: 4 }).max(0);
                        from + (missing.bitcast(from.ty()) + (dilation - 1)) / dilation * dilation
                    }
                    // Only max pooling has a dilation.
                    PoolOp::Average { .. } | PoolOp::Norm => from.max(before),
                };
                let end = (from + kernel * dilation).min(before + input) - before;
                (kernel.min((input + (dilation - 1)) / dilation), first - before, end, counted)
            }
        };
        Axis { most, dilation, stride_in_memory, start, end, counted }
    }

    /// Folds an element into the result so far.
    fn fold<'k>(&self, folded: Value<'k>, element: Value<'k>, p: Option<Value<'k>>) -> Value<'k> {
        match (self.op, p) {
            (PoolOp::Max, _) => folded.max(element),
            (PoolOp::Norm, Some(p)) => folded + element.abs().pow(p.splat(4)),
            _ => folded + element,
        }
    }

    /// Returns the result of an empty window.
    fn empty<'k>(&self, k: &'k KernelBuilder) -> Value<'k> {
        let number = match self.op {
            PoolOp::Max => lowest(k, self.dtype),
            _ => k.number(Type { scalar: self.dtype.compute_scalar(), lanes: 1 }, 0),
        };
        number.splat(4)
    }
}

impl Finishing for Pool {
    fn width(&self) -> u32 {
        4
    }

    fn stored(&self) -> DType {
        self.dtype
    }

    fn with_epilogue(&self, epilogue: Box<Epilogue>) -> Self {
        Pool { epilogue: Some(epilogue), ..self.clone() }
    }

    fn finished(parameters: &Parameters, epilogue: epilogue::Parameters) -> Parameters {
        Parameters { epilogue: Some(epilogue), ..parameters.clone() }
    }
}

impl Family for Pool {
    fn products(&self, Parameters { count, axes, .. }: &Parameters) -> u64 {
        volume([count].into_iter().chain(axes.iter().map(|axis| (&axis.window.input).min(&axis.window.kernel))))
    }

    fn name(&self) -> String {
        let op = match self.op {
            PoolOp::Max => "max",
            PoolOp::Average { padding_counts: true } => "average with padding",
            PoolOp::Average { padding_counts: false } => "average",
            PoolOp::Norm => "norm",
        };
        format!("pool{}d({op}, {:?}, {})", self.axes, self.windows, self.dtype).to_lowercase()
    }

    fn workgroup(&self) -> u32 {
        WORKGROUP
    }

    fn write<'k>(&self, k: &'k KernelBuilder) {
        let Declared { count, channels, axes: spatial, x: x_at, p, epilogue } = self.declare(k);
        let x = Elements::input(k, "x", self.dtype);
        let y = Outputs::new(k, self.dtype, 4, self.epilogue.as_deref().zip(epilogue), None).up_to(count);

        let quad = k.global_index();
        k.when((quad * 4).lt(count), || {
            let lengths: Vec<_> = [channels].into_iter().chain(spatial.iter().map(|axis| axis.window.output)).collect();
            let (image, places) = take_quad_apart(k, quad, count, &lengths);
            let (channel, places) = (places[0], &places[1..]);
            let from_last = (1..=self.axes).rev();
            let axes = spatial.iter().zip(places).zip(from_last);
            let axes: Vec<_> = axes.map(|((axis, &q), from_last)| self.axis(axis, x_at.stride(from_last), q)).collect();
            let index = x_at.at(&[image, channel]);

            let folded = k.var(self.empty(k));
            each_element(k, &axes, (index, None), &|(index, inside)| {
                let load = |index: Value<'k>| x.gather_lanes(k, index);
                let before = folded.get();
                folded.set(match inside {
                    Some(inside) => inside.select(self.fold(before, load(inside.select(index, 0)), p), before),
                    None => self.fold(before, load(index), p),
                });
            });
            let folded = folded.get();
            let result = match (self.op, p) {
                (PoolOp::Average { .. }, _) => {
                    // As floats: with padding, their product may not fit an integer.
                    let scalar = self.dtype.compute_scalar();
                    let counted = axes.iter().map(|axis| axis.counted.convert(scalar)).reduce(|a, b| a * b);
                    counted.map_or(folded, |counted| folded / counted)
                }
                (PoolOp::Norm, Some(p)) => folded.pow((p.literal(1.0) / p).splat(4)),
                _ => folded,
            };
            y.store(k, quad * 4, result);
        });
    }

    fn samples() -> Vec<Self> {
        let ops = [PoolOp::Max, PoolOp::Average { padding_counts: true }, PoolOp::Norm];
        let windows = [Windows::Sliding, Windows::Adaptive];
        let configs = ops.into_iter().flat_map(|op| windows.map(|windows| (op, windows)));
        configs.map(|(op, windows)| Pool { op, windows, dtype: DType::F32, axes: 2, epilogue: None }).collect()
    }
}

/// Visits the elements of all four windows at once.
fn each_element<'k>(
    k: &'k KernelBuilder,
    axes: &[Axis<'k>],
    (index, inside): Sources<'k>,
    visit: &dyn Fn(Sources<'k>),
) {
    let Some((axis, inner)) = axes.split_first() else { return visit((index, inside)) };
    k.for_range(0, axis.most, |tap| {
        let i = axis.start + tap * axis.dilation;
        let here = i.lt(axis.end);
        let inside = inside.map_or(here, |outer| outer & here);
        each_element(k, inner, (index + i * axis.stride_in_memory, Some(inside)), visit);
    });
}
