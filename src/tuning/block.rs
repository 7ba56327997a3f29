//! Blocks of matrix products: which ones are valid, and what they need of a device.
//!
//! The build script includes this file, too. It refuses tuning data with blocks that do not fit.

/// The block of a product that a workgroup computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Rows and columns.
    pub shape: [u32; 2],
    /// Rows and columns that each invocation computes: multiples of 4.
    pub part: [u32; 2],
    /// The depth of a tile, a multiple of 4.
    pub depth: u32,
}

impl Block {
    /// Padding elements between the lines of a tile that are written across. They avoid bank conflicts.
    pub const PAD: u32 = 4;

    /// Returns the number of invocations of the workgroup.
    pub const fn invocations(self) -> u32 {
        self.shape[0] / self.part[0] * (self.shape[1] / self.part[1])
    }

    /// Returns the most workgroup memory in bytes that two stages of both operands' tiles take. A number has `bytes`
    /// bytes.
    pub const fn workgroup_memory(self, bytes: u32) -> u32 {
        let lines = 2 * self.depth;
        bytes * lines * (self.shape[0] + self.shape[1] + 2 * Block::PAD)
    }

    /// Returns about how many numbers an invocation holds: its sums, a line of its part of both tiles, and its loads
    /// for the next tiles.
    pub const fn registers(self) -> u32 {
        let [rows, columns] = self.part;
        let loaded = self.depth * (self.shape[0] + self.shape[1]) / self.invocations();
        rows * columns + columns + 4 + loaded
    }

    /// Returns what is wrong with the block on any device.
    pub fn fault(self) -> Option<String> {
        let Block { shape, part, depth } = self;
        let sizes = [shape[0], shape[1], part[0], part[1], depth];
        if sizes.iter().any(|size| *size == 0 || !size.is_multiple_of(4)) {
            return Some("its sizes are not multiples of 4".into());
        }
        if !shape[0].is_multiple_of(part[0]) || !shape[1].is_multiple_of(part[1]) {
            return Some("its parts do not fill it".into());
        }
        let [down, across] = [shape[0] / part[0], shape[1] / part[1]];
        if !down.is_multiple_of(4) || !across.is_multiple_of(8) {
            return Some(format!("its {down} x {across} parts are no multiple of 4 x 8, those of a subgroup"));
        }
        let loads = shape.map(|extent| depth * extent / 4);
        if loads.iter().any(|loads| !loads.is_multiple_of(self.invocations())) {
            return Some(format!("its {} invocations do not share the loads of a tile evenly", self.invocations()));
        }
        None
    }
}

/// The block of a workgroup on matrix units, and how it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UnitBlock {
    /// Rows and columns.
    pub shape: [u32; 2],
    /// Rows and columns that a subgroup computes: multiples of 16.
    pub part: [u32; 2],
    /// The depth of a tile in bytes: a multiple of 64.
    pub depth: u32,
    /// Subgroups that compute the same part from slices of the depth, and then add up their sums.
    pub slices: u32,
    /// What products of 16-bit operands take to lie as lanes hold it. Only for devices on which that order is known.
    pub fragments: Fragments,
}

/// What lies as lanes hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fragments {
    None,
    /// The sums: they leave from registers.
    Sums,
    /// The sums, and the tiles of both operands.
    All,
}

impl Fragments {
    const ALL: [Fragments; 3] = [Fragments::None, Fragments::Sums, Fragments::All];

    /// Returns the name in the tuning data.
    pub fn name(self) -> &'static str {
        match self {
            Fragments::None => "none",
            Fragments::Sums => "sums",
            Fragments::All => "all",
        }
    }

    /// Returns the one with this name, if there is one.
    pub fn parse(name: &str) -> Option<Fragments> {
        Fragments::ALL.into_iter().find(|fragments| fragments.name() == name)
    }
}

impl UnitBlock {
    /// Lanes of a subgroup.
    pub const LANES: u32 = 32;

    /// Rows and columns of a part whose operands lie as lanes hold them.
    pub const FRAGMENTS_PART: u32 = 64;

    /// Returns the number of subgroups that compute different parts.
    pub const fn parts(self) -> u32 {
        self.shape[0] / self.part[0] * (self.shape[1] / self.part[1])
    }

    /// Returns the number of invocations of the workgroup.
    pub const fn invocations(self) -> u32 {
        self.parts() * self.slices * UnitBlock::LANES
    }

    /// Returns what is wrong with the block.
    pub fn fault(self) -> Option<String> {
        let UnitBlock { shape, part, depth, slices, fragments } = self;
        if part.iter().any(|size| *size == 0 || !size.is_multiple_of(16)) || depth == 0 || !depth.is_multiple_of(64) {
            return Some("its parts are not multiples of 16, or its depth is none of 64".into());
        }
        if !shape[0].is_multiple_of(part[0]) || !shape[1].is_multiple_of(part[1]) {
            return Some("its parts do not fill it".into());
        }
        if slices == 0 || !depth.is_multiple_of(32 * slices) || part[1] < 16 * slices {
            return Some(format!("its depth, or a row of its parts, is not to be had in {slices} slices"));
        }
        if fragments == Fragments::Sums && (slices > 1 || !part[1].is_multiple_of(32)) {
            return Some("sums leave from registers in one slice, 32 columns at a time".into());
        }
        if fragments == Fragments::All {
            // Subgroups share the loads of 128 bytes of the depth: in groups of four, or in pairs that load 64 columns.
            let fits = part == [UnitBlock::FRAGMENTS_PART; 2]
                && shape[0] == 2 * part[0]
                && shape[1].is_multiple_of(2 * part[1]);
            let fits = fits && depth == 128 && slices == 1;
            return (!fits)
                .then(|| "fragments are of 128 x 128 n, in parts of 64 x 64, 128 bytes deep, in one slice".into());
        }
        // Lines of tiles run along the depth, or along rows or columns with one or two bytes per element.
        let lines = [depth, shape[0], shape[1], 2 * shape[0], 2 * shape[1]].map(|bytes| bytes / 16);
        let loads = shape.map(|extent| extent * depth / 16);
        let even = |count: &u32, by: u32| count.is_multiple_of(by);
        if lines.iter().any(|line| !even(&self.invocations(), *line))
            || loads.iter().any(|loads| !even(loads, self.invocations()))
        {
            return Some(format!("its {} invocations do not share the loads of a tile evenly", self.invocations()));
        }
        None
    }
}
