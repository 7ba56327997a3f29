//! What the tools have passed already: a tool gets a kernel once, even if several runs of one `make test` have it.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;

/// What tells kernels apart.
pub type Identity = u128;

/// What one tool has passed. Earlier runs have left it in the folder `MARQUETRY_TEST_PASSED`, if there is one.
pub struct Passed {
    file: Option<PathBuf>,
    known: HashSet<Identity>,
}

impl Passed {
    pub fn by(tool: &str) -> Self {
        let file = std::env::var_os("MARQUETRY_TEST_PASSED").map(|folder| PathBuf::from(folder).join(tool));
        let bytes = file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let (words, _) = bytes.as_chunks::<{ size_of::<Identity>() }>();
        Passed { file, known: words.iter().map(|word| Identity::from_le_bytes(*word)).collect() }
    }

    /// The kernels that are neither known nor the same as an earlier one of these.
    pub fn unknown(&self, kernels: &[PathBuf], identity: impl Fn(&PathBuf) -> Identity) -> Vec<PathBuf> {
        let mut seen = self.known.clone();
        kernels.iter().filter(|path| seen.insert(identity(path))).cloned().collect()
    }

    /// Keeps kernels for the runs that follow.
    pub fn add(self, kernels: impl Iterator<Item = Identity>) {
        let Some(file) = self.file else { return };
        let mut file = std::fs::File::options().create(true).append(true).open(file).expect("the folder is writable");
        let bytes: Vec<u8> = kernels.flat_map(Identity::to_le_bytes).collect();
        file.write_all(&bytes).expect("the folder is writable");
    }
}
