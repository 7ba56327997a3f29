//! The format of native binaries: a mark, a checksum of the rest, the length of the SPIR-V in bytes, the SPIR-V, and
//! OpenCL's binary. OpenCL never gets a damaged binary, because it might end the process.

use std::hash::{DefaultHasher, Hash, Hasher};

const MARK: &[u8; 8] = b"ZETESTDR";

fn checksum(bytes: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

pub fn pack(spirv: &[u32], binary: &[u8]) -> Vec<u8> {
    let mut body = ((spirv.len() * 4) as u64).to_le_bytes().to_vec();
    body.extend(spirv.iter().flat_map(|word| word.to_le_bytes()));
    body.extend(binary);
    [&MARK[..], &checksum(&body), &body].concat()
}

pub fn unpack(packed: &[u8]) -> Option<(Vec<u32>, &[u8])> {
    let (sum, body) = packed.strip_prefix(MARK)?.split_first_chunk::<8>()?;
    if *sum != checksum(body) {
        return None;
    }
    let (length, rest) = body.split_first_chunk::<8>()?;
    let (spirv, binary) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
    Some((words(spirv), binary))
}

/// Turns the bytes of a SPIR-V module into words.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
