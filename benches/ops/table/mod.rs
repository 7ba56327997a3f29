//! The table: what is measured, by family of operations.

mod attention;
mod conv;
mod decode;
mod launches;
mod matmul;
mod matvec;
mod memory;
mod minilm;
mod networks;
mod ordering;
mod quantized;
mod sampling;
mod sweep;

use crate::case::Case;
use anyhow::Result;
use marquetry::Device;
use std::path::Path;

/// The sizes that suit a device.
pub struct Sizes {
    /// The side of the largest square matrices of `f32`.
    side: usize,
    /// Square products of `f32`, and of narrower dtypes.
    products: &'static [usize],
    narrow_products: &'static [usize],
    /// The rows that are multiplied by the weights of a model, the model's width, and the widths of its layers.
    rows: usize,
    width: usize,
    layers: [usize; 2],
    /// The tokens of a prompt, or of the cache that the next token attends to.
    context: usize,
    /// A batch of images.
    images: usize,
    /// A language model.
    model: decode::Model,
    /// The tokens of a small and a large vocabulary.
    vocabularies: [usize; 2],
    /// More bytes than any cache holds.
    uncached: usize,
    /// Rows, columns and depth of the products of which one is swept, and the largest size.
    swept: ([usize; 3], usize),
}

impl Sizes {
    pub fn of(device: &Device) -> Sizes {
        if crate::is_software(device) {
            let (products, narrow_products): (&[_], &[_]) = (&[256, 512, 1024], &[512]);
            return Sizes {
                side: 4096,
                products,
                narrow_products,
                rows: 64,
                width: 1024,
                layers: [1024, 3584],
                context: 256,
                images: 1,
                model: decode::Model { name: "tiny", layers: 2, width: 1024, keys: 256, inner: 3584, vocabulary: 8192 },
                vocabularies: [8192, 49_152],
                uncached: 1 << 26,
                swept: ([320, 320, 1152], 1031),
            };
        }
        // The largest power of two for which the device can bind a square matrix.
        let largest = (device.info().limits.max_binding_bytes / 4).isqrt().max(1).ilog2();
        Sizes {
            side: 1 << largest.min(14),
            products: &[512, 1024, 2048, 4096, 8192],
            narrow_products: &[4096, 8192],
            rows: 512,
            width: 4096,
            layers: [4096, 14336],
            context: 4096,
            images: 32,
            // As Llama 3 has them.
            model: decode::Model { name: "8B", layers: 32, width: 4096, keys: 1024, inner: 14336, vocabulary: 128_256 },
            // As SmolLM2 and Qwen 2 have them.
            vocabularies: [49_152, 151_936],
            uncached: 1 << 28,
            swept: ([1024, 1024, 1024], 4100),
        }
    }

    /// Returns the number of elements of the largest tensors of `f32`.
    pub fn elements(&self) -> usize {
        self.side * self.side
    }

    /// Returns the size of the product that a native library computes, too.
    pub fn native(&self, device: &Device) -> Option<usize> {
        crate::is_software(device).then(|| self.products[self.products.len() - 1])
    }

    /// Returns how many operands of this many bytes are more than caches hold.
    fn distinct(&self, bytes: usize) -> usize {
        self.uncached.div_ceil(bytes)
    }
}

/// Returns all cases for a device. The case of the model is among them if the model's files are there.
pub fn cases(device: &Device, model: &Path) -> Result<Vec<Case>> {
    let sizes = Sizes::of(device);
    let mut cases = matmul::cases(&sizes);
    cases.extend(sizes.native(device).map(matmul::beside_native));
    cases.extend(matvec::cases(&sizes));
    cases.extend(quantized::cases(&sizes));
    cases.extend(attention::cases(&sizes));
    cases.extend(conv::cases(&sizes));
    cases.extend(networks::cases(&sizes));
    cases.extend(decode::cases(&sizes));
    cases.extend(sampling::cases(&sizes));
    cases.extend(memory::cases(&sizes));
    cases.extend(ordering::cases(&sizes));
    cases.push(launches::case());
    if model.join("model.safetensors").is_file() {
        cases.push(minilm::case(model)?);
    }
    Ok(cases)
}

/// Returns the cases of many sizes.
pub fn sweep(device: &Device) -> Vec<Case> {
    sweep::cases(&Sizes::of(device))
}

/// Describes the rows of a matrix.
fn described([rows, length]: [usize; 2]) -> String {
    if rows == 1 { power(length) } else { format!("rows of {length}, {} in all", power(rows * length)) }
}

/// Writes a count as people do: `2^20`, or in decimals.
fn power(count: usize) -> String {
    if count.is_power_of_two() { format!("2^{}", count.ilog2()) } else { count.to_string() }
}
