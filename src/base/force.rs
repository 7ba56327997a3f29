//! [`Force`]: what tests force, read from `MARQUETRY_FORCE`.

use crate::tuning::UnitBlock;

/// Forced choices. By default there are none.
#[derive(Debug, Default, PartialEq)]
#[cfg_attr(not(every_backend), allow(dead_code, reason = "some words are for one backend"))]
pub(crate) struct Force {
    /// Whether wgpu gets all kernels as WGSL.
    pub wgsl: bool,
    /// Whether Vulkan kernels reach all buffers by address.
    pub addresses: bool,
    /// Whether a thread of its own submits work. `None`: it does, unless the device is software.
    pub submit_thread: Option<bool>,
    /// Whether uploads have a queue of their own on Vulkan. If the device lacks one, the queue for kernels stands in.
    /// `None`: they have it if the device does.
    pub copy_queue: Option<bool>,
    /// Whether kernels use the device's instruction for dot products. `None`: they do if it is fast.
    pub dot_products: Option<bool>,
    /// Whether kernels do without [atomic sums of floats](crate::Features::float_atomics).
    pub no_float_atomics: bool,
    /// Whether products avoid matrix units.
    pub no_units: bool,
    /// Whether kernels on matrix units do without [reductions](crate::MatrixUnits::reductions).
    pub no_reductions: bool,
    /// The blocks that products on matrix units choose first, if they fit.
    pub unit_blocks: Vec<UnitBlock>,
    /// The numbers of parts of the depth that these products choose first, if they fit.
    pub splits: Vec<usize>,
}

impl Force {
    /// The values that are understood, for the error message.
    pub const EXPECTED: &str = "words with commas between them: `wgsl`, `addresses`, `submit-thread`, \
                                `no-submit-thread`, `copy-queue`, `no-copy-queue`, `dot-products`, `no-dot-products`, \
                                `no-float-atomics`, `no-units`, `no-reductions`, `units=` with a block, as in \
                                `units=128x128x128/64x64x1`, or `splits=` with 1, 2, 4 or 8";

    /// The numbers of parts into which products may cut the depth.
    pub const SPLITS: [usize; 4] = [1, 2, 4, 8];

    /// Parses words separated by commas. Returns `None` if one of them is unknown.
    pub fn parse(text: &str) -> Option<Force> {
        let mut force = Force::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                None => match word {
                    "wgsl" => force.wgsl = true,
                    "addresses" => force.addresses = true,
                    "submit-thread" => force.submit_thread = Some(true),
                    "no-submit-thread" => force.submit_thread = Some(false),
                    "copy-queue" => force.copy_queue = Some(true),
                    "no-copy-queue" => force.copy_queue = Some(false),
                    "dot-products" => force.dot_products = Some(true),
                    "no-dot-products" => force.dot_products = Some(false),
                    "no-float-atomics" => force.no_float_atomics = true,
                    "no-units" => force.no_units = true,
                    "no-reductions" => force.no_reductions = true,
                    _ => return None,
                },
                Some(("units", block)) => force.unit_blocks.push(UnitBlock::parse(block)?),
                Some(("splits", splits)) => {
                    force.splits.push(splits.parse().ok().filter(|splits| Force::SPLITS.contains(splits))?);
                }
                Some(_) => return None,
            }
        }
        Some(force)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_forces_something() {
        let block = |text| UnitBlock::parse(text).unwrap();
        let text = "wgsl, addresses,submit-thread,copy-queue,dot-products,no-float-atomics,no-units,no-reductions,units=128x128x128/64x64x1,\
                    units=128x256x128/64x64x1 fragments,units=128x64x128/64x32x1 sums, splits=4";
        let expected = Force {
            wgsl: true,
            addresses: true,
            submit_thread: Some(true),
            copy_queue: Some(true),
            dot_products: Some(true),
            no_float_atomics: true,
            no_units: true,
            no_reductions: true,
            unit_blocks: ["128x128x128/64x64x1", "128x256x128/64x64x1 fragments", "128x64x128/64x32x1 sums"]
                .map(block)
                .into(),
            splits: vec![4],
        };
        assert_eq!(Force::parse(text), Some(expected));
        let no = Some(false);
        let without = Force { dot_products: no, submit_thread: no, copy_queue: no, ..Force::default() };
        assert_eq!(Force::parse("no-dot-products,no-submit-thread,no-copy-queue"), Some(without));
    }

    #[test]
    fn unknown_words_are_refused() {
        // In the fourth text, the parts of 48 rows do not fill the block of 128 rows.
        for text in ["garbage", "WGSL", "wgsl,", "units=128x128x128/48x64x1", "splits=3", "splits=", "tile=4"] {
            assert_eq!(Force::parse(text), None, "{text}");
        }
    }

    #[test]
    fn blocks_are_written_as_they_are_called() {
        for block in UnitBlock::all() {
            assert_eq!(UnitBlock::parse(&block.name()), Some(block));
        }
    }
}
