//! Einstein's summation convention: sums of products over named axes.

use crate::base::error::{Error, Result};
use crate::base::shape::{Dims, Shape};
use crate::tensor::Tensor;
use std::borrow::Borrow;
use std::collections::BTreeMap;

const OP: &str = "einsum";

impl Tensor {
    /// Returns sums of products over named axes, as numpy's `einsum`. A letter names each axis of an operand. Axes of
    /// one name are one axis, and axes that the output does not name are summed over. A letter that occurs twice in an
    /// operand stands for its diagonal. Without `->`, the output has the letters that occur once, in alphabetical
    /// order. `...` stands for any number of axes, which are broadcast.
    ///
    /// Operands are combined from left to right, two at a time. If axes are summed over, a matrix product combines
    /// them. An operand is copied only if several of its axes together are the rows, the columns or the depth, and
    /// their strides do not merge. Sums of `f16` and `bf16` are computed in `f32`.
    ///
    /// ```
    /// # use marquetry::{DType, Device, Tensor};
    /// # let device = Device::best()?;
    /// let x = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &device)?;
    /// assert_eq!(Tensor::einsum("ii", &[&x])?.to_scalar::<f32>()?, 5.0);
    /// assert_eq!(Tensor::einsum("ij,ij->i", &[&x, &x])?.to_vec::<f32>()?, [5.0, 25.0]);
    /// let (q, k) = (Tensor::zeros((2, 4, 5, 8), DType::F32, &device)?, Tensor::zeros((2, 4, 7, 8), DType::F32, &device)?);
    /// assert_eq!(Tensor::einsum("bhqd,bhkd->bhqk", &[&q, &k])?.dims(), [2, 4, 5, 7]);
    /// # Ok::<(), marquetry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the subscripts are malformed or do not fit the shapes, or if lengths of one name
    /// are neither equal nor 1; [`Error::DTypeMismatch`], [`Error::DeviceMismatch`]; [`Error::UnsupportedDType`] for
    /// 8-bit integers and `bool`.
    pub fn einsum<T: Borrow<Tensor>>(subscripts: &str, operands: &[T]) -> Result<Tensor> {
        let tensors: Vec<&Tensor> = operands.iter().map(Borrow::borrow).collect();
        let invalid = |message: String| {
            let shapes: Vec<String> = tensors.iter().map(|tensor| tensor.shape().to_string()).collect();
            let message = format!("{message}; the subscripts are `{subscripts}`, the shapes {}", shapes.join(", "));
            Error::InvalidArgument { op: OP, message }
        };
        let (inputs, output) = parse(subscripts, &tensors).map_err(invalid)?;
        let Some(first) = tensors.first() else { return Err(invalid("there are no operands".into())) };
        first.check_products(OP)?;
        for tensor in &tensors {
            first.check_same_device(tensor, OP)?;
            first.check_same_dtype(tensor, OP)?;
        }
        check_lengths(&inputs, &tensors).map_err(invalid)?;

        let factors = tensors.iter().zip(inputs).map(|(tensor, labels)| Factor::new(tensor, labels));
        let mut rest: Vec<Factor> = factors.collect::<Result<_>>()?;
        let mut product = rest.remove(0);
        while !rest.is_empty() {
            let factor = rest.remove(0);
            let needed = |label: &Label| output.contains(label) || rest.iter().any(|later| later.has(label));
            product = product.times(factor, &needed)?;
        }
        product.into_output(&output)?.to_dtype(first.dtype())
    }
}

/// The name of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    /// An axis that `...` stands for, counted from the last one.
    Ellipsis(usize),
    Letter(char),
}

/// Returns the names of the operands' axes, and of the output's.
fn parse(subscripts: &str, tensors: &[&Tensor]) -> Result<(Vec<Vec<Label>>, Vec<Label>), String> {
    let text: String = subscripts.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (text.as_str(), None),
    };
    let inputs: Vec<&str> = inputs.split(',').collect();
    if inputs.len() != tensors.len() {
        return Err(format!("{} operands are named, but {} are given", inputs.len(), tensors.len()));
    }
    let inputs = inputs.iter().zip(tensors).map(|(term, tensor)| labels(term, Some(tensor.rank())));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let all: Vec<Label> = inputs.iter().flatten().copied().collect();
    let count = |label: &Label| all.iter().filter(|other| *other == label).count();
    let dots = all.iter().filter_map(|label| if let Label::Ellipsis(i) = label { Some(i + 1) } else { None });
    let dots = dots.max().unwrap_or(0);
    let output = match output {
        None => {
            let mut letters: Vec<Label> =
                all.iter().filter(|label| matches!(label, Label::Letter(_)) && count(label) == 1).copied().collect();
            letters.sort_unstable();
            (0..dots).rev().map(Label::Ellipsis).chain(letters).collect()
        }
        Some(term) => {
            let letters = term.chars().filter(|c| *c != '.').count();
            let output = labels(term, term.contains("...").then_some(letters + dots))?;
            for (i, label) in output.iter().enumerate() {
                if let Label::Letter(letter) = label
                    && (count(label) == 0 || output[..i].contains(label))
                {
                    let what = if count(label) == 0 { "in no operand" } else { "twice in the output" };
                    return Err(format!("`{letter}` is {what}"));
                }
            }
            output
        }
    };
    Ok((inputs, output))
}

/// Returns the names of a term, which has `rank` axes if that is known.
fn labels(term: &str, rank: Option<usize>) -> Result<Vec<Label>, String> {
    let (before, after) = match term.split_once("...") {
        Some((before, after)) => (before, Some(after)),
        None => (term, None),
    };
    let named = before.chars().chain(after.unwrap_or_default().chars());
    if let Some(other) = named.clone().find(|c| !c.is_ascii_alphabetic()) {
        return Err(format!("`{other}` in `{term}` is neither a letter nor `...`, `,` or `->`"));
    }
    let named = named.count();
    let rank = rank.unwrap_or(named);
    if rank < named || (rank > named && after.is_none()) {
        return Err(format!("`{term}` names {named} axes of an operand of {rank}"));
    }
    let letters = |text: &str| text.chars().map(Label::Letter).collect::<Vec<_>>();
    let mut labels = letters(before);
    labels.extend((0..rank - named).rev().map(Label::Ellipsis));
    labels.extend(letters(after.unwrap_or_default()));
    Ok(labels)
}

/// Checks that the lengths of axes of one name are equal within an operand, and equal or 1 between operands.
fn check_lengths(inputs: &[Vec<Label>], tensors: &[&Tensor]) -> Result<(), String> {
    let mut lengths = BTreeMap::new();
    for (labels, tensor) in inputs.iter().zip(tensors) {
        for (i, (label, &length)) in labels.iter().zip(tensor.dims()).enumerate() {
            let first = labels.iter().position(|other| other == label).unwrap_or(i);
            let known = lengths.entry(*label).or_insert(length);
            let fits = *known == length || *known == 1 || length == 1;
            if !fits || tensor.dims()[first] != length {
                let name = match label {
                    Label::Letter(letter) => format!("`{letter}`"),
                    Label::Ellipsis(_) => "an axis of `...`".into(),
                };
                let other = if fits { tensor.dims()[first] } else { *known };
                return Err(format!("{name} has the lengths {other} and {length}"));
            }
            if *known == 1 {
                *known = length;
            }
        }
    }
    Ok(())
}

/// A tensor with names for its axes, all different.
struct Factor {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl Factor {
    /// Names the axes of a tensor. Axes of one name become their diagonal.
    fn new(tensor: &Tensor, mut labels: Vec<Label>) -> Result<Factor> {
        let mut tensor = tensor.clone();
        let twice = |labels: &[Label]| {
            (0..labels.len()).find_map(|i| Some((i, labels[..i].iter().position(|label| *label == labels[i])?)))
        };
        while let Some((second, first)) = twice(&labels) {
            tensor = tensor.diagonal(0, first, second)?;
            let label = labels.remove(second);
            labels.remove(first);
            labels.push(label);
        }
        Ok(Factor { tensor, labels })
    }

    fn has(&self, label: &Label) -> bool {
        self.labels.contains(label)
    }

    fn length(&self, label: &Label) -> usize {
        self.labels.iter().zip(self.tensor.dims()).find(|(other, _)| *other == label).map_or(1, |(_, &length)| length)
    }

    /// Converts to the dtype in which sums are accumulated.
    fn widened(self) -> Result<Factor> {
        Ok(Factor { tensor: self.tensor.to_dtype(self.tensor.dtype().widened())?, labels: self.labels })
    }

    /// Sums over all axes except those that are `kept`.
    fn summed(self, kept: impl Fn(&Label) -> bool) -> Result<Factor> {
        let axes: Vec<usize> = (0..self.labels.len()).filter(|&axis| !kept(&self.labels[axis])).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.into_iter().filter(kept).collect();
        Ok(Factor { tensor: self.tensor.sum(axes)?, labels })
    }

    /// Returns the view with its axes in the order of `labels`. Axes that the factor lacks have length 1.
    fn in_order(&self, labels: &[Label]) -> Result<Tensor> {
        let place = |label: &Label| self.labels.iter().position(|other| other == label);
        let mut view = self.tensor.permute(labels.iter().filter_map(place).collect::<Vec<_>>())?;
        for (axis, _) in labels.iter().enumerate().filter(|(_, label)| !self.has(label)) {
            view = view.unsqueeze(axis)?;
        }
        Ok(view)
    }

    /// Returns the product with another factor, summed over the axes that are not `needed` later.
    fn times(self, rhs: Factor, needed: &impl Fn(&Label) -> bool) -> Result<Factor> {
        // Axes of only one factor are summed before the product.
        let lone = |x: &Factor, other: &Factor| x.labels.iter().any(|label| !needed(label) && !other.has(label));
        let (lone_lhs, lone_rhs) = (lone(&self, &rhs), lone(&rhs, &self));
        let mut lhs = if lone_lhs { self.widened()?.summed(|label| needed(label) || rhs.has(label))? } else { self };
        let mut rhs = if lone_rhs { rhs.widened()?.summed(|label| needed(label) || lhs.has(label))? } else { rhs };
        let contracted: Vec<Label> = lhs.labels.iter().copied().filter(|label| !needed(label)).collect();
        if contracted.is_empty() || lhs.tensor.dtype() != rhs.tensor.dtype() {
            (lhs, rhs) = (lhs.widened()?, rhs.widened()?);
        }
        if contracted.is_empty() { lhs.multiplied(&rhs) } else { lhs.contracted(&rhs, &contracted) }
    }

    /// Returns the elementwise product.
    fn multiplied(&self, rhs: &Factor) -> Result<Factor> {
        let added = rhs.labels.iter().filter(|label| !self.has(label));
        let labels: Vec<Label> = self.labels.iter().chain(added).copied().collect();
        let tensor = self.in_order(&labels)?.mul(&rhs.in_order(&labels)?)?;
        Ok(Factor { tensor, labels })
    }

    /// Returns the matrix product. Axes of both factors are the batch, axes of one factor its rows or columns.
    fn contracted(&self, rhs: &Factor, contracted: &[Label]) -> Result<Factor> {
        let only = |x: &Factor, other: &Factor| -> Vec<Label> {
            x.labels.iter().copied().filter(|label| !other.has(label)).collect()
        };
        let (rows, columns) = (only(self, rhs), only(rhs, self));
        let batch: Vec<Label> =
            self.labels.iter().copied().filter(|label| rhs.has(label) && !contracted.contains(label)).collect();
        let a = self.matrices(rhs, &batch, &rows, contracted)?;
        let b = rhs.matrices(self, &batch, contracted, &columns)?;
        let product = a.product(&b, a.dtype().widened(), OP)?;
        let labels = [batch, rows, columns].concat();
        let shape: Shape = labels.iter().map(|label| broadcast_length(self.length(label), rhs.length(label))).collect();
        Ok(Factor { tensor: product.reshape(shape)?, labels })
    }

    /// Returns the tensor with the axes of the batch, then `rows` as one axis, then `columns` as one. Rows and columns
    /// that `other` has, too, are broadcast to its lengths.
    fn matrices(&self, other: &Factor, batch: &[Label], rows: &[Label], columns: &[Label]) -> Result<Tensor> {
        let view = self.in_order(&[batch, rows, columns].concat())?;
        let mut dims: Dims = view.dims().into();
        for (length, label) in dims[batch.len()..].iter_mut().zip(rows.iter().chain(columns)) {
            *length = broadcast_length(*length, other.length(label));
        }
        let mut view = view.broadcast_to(dims)?;
        for (start, count) in [(batch.len() + rows.len(), columns.len()), (batch.len(), rows.len())] {
            view = if count == 0 { view.unsqueeze(start)? } else { view.flatten(start, start + count - 1)? };
        }
        Ok(view)
    }

    /// Returns the tensor with the axes of the output, in its order.
    fn into_output(self, output: &[Label]) -> Result<Tensor> {
        self.summed(|label| output.contains(label))?.in_order(output)
    }
}

/// Returns the length that two axes are broadcast to.
fn broadcast_length(a: usize, b: usize) -> usize {
    if a == 1 { b } else { a }
}
