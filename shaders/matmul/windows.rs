//! A left operand that is not in memory as a matrix: the windows of a tensor whose channels are contiguous. A
//! convolution is its product with the weights.
//!
//! - Rows: the places of the window in all images.
//! - Depth: the taps of the window, and for each of them the channels.

use super::{Matrix, in_runs};
use crate::kernels::elements::take_apart;
use crate::kernels::parameters::{Each, Size, Stride, parameters, times};
use crate::kernels::window::{DeclaredWindow, WindowForm};
use crate::shader::Value;

/// The form of the parameters of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Windows {
    pub axes: usize,
    /// True if the channels of a tap may begin anywhere, and be fewer than those along the depth.
    pub loose: bool,
}

parameters! {
    config: Windows;
    host: WindowsParameters;
    device: DeclaredWindows;
    /// The channels of a tap along the depth.
    channels: Size,
    /// If windows are loose, the channels of a tap that are in memory: less than eight are missing. They count as 0.
    present: Option<Size> = config.loose.then_some(Size),
    /// A window per axis.
    windows: Each<WindowForm> = times(config.axes),
    /// The distance between images, then those between neighbours along each axis.
    strides: Each<Stride> = times(1 + config.axes),
}

impl WindowsParameters {
    /// Whether `count` channels at a time lie side by side, from multiples of `count` on.
    pub fn are_along_channels(&self, offset: usize, count: usize) -> bool {
        let strides = self.strides.iter().map(|stride| stride.unsigned_abs());
        [offset, self.channels].into_iter().chain(strides).all(|distance| distance.is_multiple_of(count))
    }
}

/// The lines of an operand: rows of the left one, columns of the right one.
pub(super) struct Lines<'k> {
    start: Value<'k>,
    kind: Kind<'k>,
}

enum Kind<'k> {
    /// A matrix with strides across and along the depth.
    Strided { across: Value<'k>, along: Value<'k> },
    /// A matrix with a stride across the depth. Along it, the channels that loose windows lack are missing.
    Weights { across: Value<'k>, runs: Runs<'k> },
    /// The windows, and where this workgroup's part of the depth begins.
    Windows(DeclaredWindows<'k>, Option<Value<'k>>),
}

/// The channels of a tap along the depth and in memory, and where this workgroup's part of the depth begins.
#[derive(Clone, Copy)]
struct Runs<'k> {
    channels: Value<'k>,
    present: Value<'k>,
    begins: Option<Value<'k>>,
}

/// Where a line is.
#[derive(Clone)]
pub(super) struct Line<'k> {
    /// The index of its first element. For a window, this is the index of its first tap. That may lie in the padding.
    first: Value<'k>,
    /// For each axis, the place of the first tap. If that is before the input, the number wraps.
    places: Vec<Value<'k>>,
}

/// Where elements at a depth are, seen from the beginning of their lines.
pub(super) struct Depth<'k> {
    distance: Value<'k>,
    /// For each axis, the distance from the first tap.
    taps: Vec<Value<'k>>,
    /// If windows are loose, how many channels of the tap are in memory from here on.
    pub left: Option<Value<'k>>,
}

impl<'k> Lines<'k> {
    /// Returns the lines of a matrix in memory.
    pub fn of_matrix(matrix: Matrix<'k>, [across, along]: [Value<'k>; 2]) -> Self {
        Lines { start: matrix.start, kind: Kind::Strided { across, along } }
    }

    /// Returns the columns of the weights that windows are multiplied by. If these are loose, channels are contiguous.
    pub fn of_weights(
        matrix: Matrix<'k>,
        strides: [Value<'k>; 2],
        windows: &DeclaredWindows<'k>,
        begins: Option<Value<'k>>,
    ) -> Self {
        let Some(present) = windows.present else { return Lines::of_matrix(matrix, strides) };
        let runs = Runs { channels: windows.channels, present, begins };
        Lines { start: matrix.start, kind: Kind::Weights { across: strides[0], runs } }
    }

    /// Returns windows as lines. The depth begins at `part_begins`, if it is cut.
    pub fn of_windows(start: Value<'k>, windows: DeclaredWindows<'k>, part_begins: Option<Value<'k>>) -> Self {
        Lines { start, kind: Kind::Windows(windows, part_begins) }
    }

    /// Returns the distance between neighbours along the depth, in runs of `length` elements. `None` if lines are
    /// windows.
    pub fn runs_along_depth(&self, length: u32) -> Option<Value<'k>> {
        let Kind::Strided { along, .. } = self.kind else { return None };
        Some(in_runs(along, length))
    }

    /// Finds a line. This takes divisions, if lines are windows.
    pub fn line(&self, number: Value<'k>) -> Line<'k> {
        match &self.kind {
            &Kind::Strided { across, .. } | &Kind::Weights { across, .. } => {
                Line { first: self.start + number * across, places: Vec::new() }
            }
            Kind::Windows(DeclaredWindows { windows, strides, .. }, _) => {
                let outputs: Vec<_> = windows.iter().map(|window| window.output).collect();
                let (image, places) = take_apart(number, &outputs);
                let place = |(q, window): (Value<'k>, &DeclaredWindow<'k>)| q * window.stride - window.before;
                let places: Vec<_> = places.into_iter().zip(windows).map(place).collect();
                let first = self.start + image * strides[0];
                let first = places.iter().zip(&strides[1..]).fold(first, |sum, (&place, &stride)| sum + place * stride);
                Line { first, places }
            }
        }
    }

    /// Finds a place along the depth. This takes divisions, if lines are windows.
    pub fn depth(&self, depth: Value<'k>) -> Depth<'k> {
        match &self.kind {
            &Kind::Strided { along, .. } => Depth { distance: depth * along, taps: Vec::new(), left: None },
            &Kind::Weights { runs: Runs { channels, present, begins }, .. } => {
                let depth = begins.map_or(depth, |begins| begins + depth);
                let (tap, channel) = (depth / channels, depth % channels);
                Depth { distance: tap * present + channel, taps: Vec::new(), left: Some(present - channel) }
            }
            Kind::Windows(DeclaredWindows { channels, present, windows, strides }, begins) => {
                let depth = begins.map_or(depth, |begins| begins + depth);
                let kernels: Vec<_> = windows[1..].iter().map(|window| window.kernel).collect();
                let (first, mut taps) = take_apart(depth / *channels, &kernels);
                taps.insert(0, first);
                let tap = |(tap, window): (Value<'k>, &DeclaredWindow<'k>)| tap * window.dilation;
                let taps: Vec<_> = taps.into_iter().zip(windows).map(tap).collect();
                let channel = depth % *channels;
                let distance = taps.iter().zip(&strides[1..]).fold(channel, |sum, (&tap, &stride)| sum + tap * stride);
                Depth { distance, taps, left: present.map(|present| present - channel) }
            }
        }
    }

    /// Returns the index of the element of a line at a depth. For windows, it also returns whether the element is in
    /// the tensor. If it is in the padding, the index is that of another element, and the caller takes 0 instead.
    pub fn index(&self, line: &Line<'k>, depth: &Depth<'k>) -> (Value<'k>, Option<Value<'k>>) {
        let index = line.first + depth.distance;
        let Kind::Windows(DeclaredWindows { windows, .. }, _) = &self.kind else { return (index, None) };
        let places = line.places.iter().zip(&depth.taps).zip(windows);
        let inside = places.map(|((&place, &tap), window)| (place + tap).lt(window.input)).reduce(|a, b| a & b);
        (inside.map_or(index, |inside| inside.select(index, self.start)), inside)
    }
}
