//! The memory that the container of this process leaves to it: Linux control groups, both versions.
//!
//! The files are described in the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of one version of control groups.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat` with the bytes of cached files, which the kernel drops if it needs memory.
    reclaimable: [&'static str; 2],
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

const V2: Files = Files { limit: "memory.max", usage: "memory.current", reclaimable: ["inactive_file", "active_file"] };

/// If there is no limit, version 1 writes the largest number of pages, in bytes.
const UNLIMITED: u64 = 1 << 62;

/// The tightest limit of the groups that this process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Bytes that the group may use.
    pub limit: u64,
    /// Bytes that it uses, without files that the kernel can drop.
    pub usage: u64,
}

/// Returns the allowance of this process, or `None` if nothing limits it.
pub(crate) fn allowance() -> Option<Allowance> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    read(Path::new("/sys/fs/cgroup"), &groups)
}

/// Reads the allowance below `root`. `groups` has a line `number:controllers:path` for each hierarchy; version 2 names
/// no controllers.
fn read(root: &Path, groups: &str) -> Option<Allowance> {
    let lines = groups.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        line.split_once(':')
    });
    lines
        .flat_map(|(controllers, path)| match controllers {
            "" => [root.to_path_buf(), root.join("unified")].map(|mount| tightest(&mount, path, &V2)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                [tightest(&root.join("memory"), path, &V1), None]
            }
            _ => [None, None],
        })
        .flatten()
        .min_by_key(left)
}

/// Returns the tightest limit of a group and of all groups around it. A container may see only one of them, as the
/// root.
fn tightest(mount: &Path, path: &str, files: &Files) -> Option<Allowance> {
    let group: PathBuf = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(mount));
    groups.filter_map(|group| of_group(group, files)).min_by_key(left)
}

fn left(allowance: &Allowance) -> u64 {
    allowance.limit.saturating_sub(allowance.usage)
}

fn of_group(group: &Path, files: &Files) -> Option<Allowance> {
    let text = |name| fs::read_to_string(group.join(name)).ok();
    let limit = text(files.limit)?.trim().parse().ok().filter(|&limit: &u64| limit < UNLIMITED)?;
    let usage: u64 = text(files.usage)?.trim().parse().ok()?;
    let statistics = text("memory.stat").unwrap_or_default();
    let reclaimable: u64 = statistics
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| files.reclaimable.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .sum();
    Some(Allowance { limit, usage: usage.saturating_sub(reclaimable) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, group: &str, files: &Files, limit: &str, usage: u64, statistics: &str) {
        let group = root.join(group);
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join(files.limit), limit).unwrap();
        fs::write(group.join(files.usage), format!("{usage}\n")).unwrap();
        fs::write(group.join("memory.stat"), statistics).unwrap();
    }

    #[test]
    fn the_tightest_limit_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, "slice", &V2, "1000\n", 700, "anon 600\ninactive_file 60\nactive_file 40\n");
        write(root, "slice/app", &V2, "900\n", 100, "");
        let groups = "0::/slice/app\n";
        assert_eq!(read(root, groups), Some(Allowance { limit: 1000, usage: 600 }));
        write(root, "slice/app", &V2, "max\n", 100, "");
        write(root, "slice", &V2, "max\n", 700, "");
        assert_eq!(read(root, groups), None);
    }

    #[test]
    fn both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let groups = "9:cpu,cpuacct:/a\n4:hugetlb,memory:/a/b\n0::/\n";
        assert_eq!(read(root, groups), None);
        write(root, "memory", &V1, "9223372036854771712\n", 5000, "");
        assert_eq!(read(root, groups), None);
        // A container that sees its own group as the root.
        write(root, "memory", &V1, "4096\n", 500, "inactive_file 400\ntotal_inactive_file 100\n");
        assert_eq!(read(root, groups), Some(Allowance { limit: 4096, usage: 400 }));
        write(root, "unified", &V2, "100\n", 50, "");
        assert_eq!(read(root, groups), Some(Allowance { limit: 100, usage: 50 }));
    }

    #[test]
    fn text_that_is_no_list_of_groups_limits_nothing() {
        for groups in ["", ":", "x", "0:", "0::", "::::", "4:memory:../..\n"] {
            assert_eq!(read(Path::new("/nowhere"), groups), None);
        }
    }
}
