//! The environment variables `MARQUETRY_*`. All are read here, once per process.
//!
//! The rules are the same for all. An empty variable counts as unset, except for [`CACHE`]. If a value is not
//! understood, opening a device fails, so that a typing error is noticed. Names that are not listed here are ignored. A
//! browser has no environment, so nothing is set there.

use crate::base::backend_kind::{BackendKind, parse_device};
use crate::base::error::{Error, Result};
use crate::base::force::Force;
use crate::tuning::{self, Entry};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The device that [`Device::best`](crate::Device::best) opens.
pub(crate) const DEVICE: &str = "MARQUETRY_DEVICE";
/// Turns on the validation layers.
pub(crate) const VALIDATION: &str = "MARQUETRY_VALIDATION";
/// The folder to which compiled kernels are written, in all their forms.
pub(crate) const DUMP: &str = "MARQUETRY_DUMP";
/// The folder for binaries of kernels. Empty: none are kept.
pub(crate) const CACHE: &str = "MARQUETRY_CACHE";
/// The entry of the tuning data that every device uses.
pub(crate) const TUNING: &str = "MARQUETRY_TUNING";
/// The words by which tests force code paths.
pub(crate) const FORCE: &str = "MARQUETRY_FORCE";
/// The library to open instead of the Level Zero loader.
pub(crate) const LEVEL_ZERO_LIBRARY: &str = "MARQUETRY_LEVEL_ZERO_LIBRARY";

/// The values of all variables.
#[derive(Debug, Default, PartialEq)]
#[cfg_attr(not(feature = "disk-cache"), allow(dead_code, reason = "some are for features that are not compiled in"))]
pub(crate) struct Environment {
    pub device: Option<(BackendKind, usize)>,
    pub validation: bool,
    pub dump: Option<PathBuf>,
    pub cache: Cache,
    pub tuning: Option<&'static Entry>,
    pub force: Force,
    pub level_zero_library: Option<OsString>,
}

/// Where binaries of kernels are kept.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum Cache {
    /// In the user's folder for caches.
    #[default]
    User,
    /// Nowhere.
    Nowhere,
    Folder(PathBuf),
}

static ENVIRONMENT: LazyLock<Result<Environment>> = LazyLock::new(|| read(std::env::var_os));

/// Returns the values of all variables.
///
/// # Errors
/// [`Error::Environment`] for the first value that is not understood.
pub(crate) fn get() -> Result<&'static Environment> {
    ENVIRONMENT.as_ref().map_err(Error::clone)
}

/// Returns the same to callers that cannot return an error. If a value is not understood, no device is open, and this
/// returns the defaults.
pub(crate) fn settings() -> &'static Environment {
    static NONE: LazyLock<Environment> = LazyLock::new(Environment::default);
    ENVIRONMENT.as_ref().unwrap_or_else(|_| &NONE)
}

impl Environment {
    /// Creates the folders that the variables name. Checks that dumps can be written, because missing dumps would be
    /// noticed late.
    pub fn prepare_folders(&self) -> Result<()> {
        let fail = |variable, folder: &Path, error: std::io::Error| {
            let message =
                format!("`{}` is no folder that can be written: {error}; write one that can", folder.display());
            Err(Error::Environment { variable, message })
        };
        if let Some(folder) = &self.dump
            && let Err(error) = std::fs::create_dir_all(folder).and_then(|()| write_and_remove(folder))
        {
            return fail(DUMP, folder, error);
        }
        // The folder need not be writable: the binaries that it holds may be enough.
        if let Cache::Folder(folder) = &self.cache
            && let Err(error) = std::fs::create_dir_all(folder)
        {
            return fail(CACHE, folder, error);
        }
        Ok(())
    }
}

/// Writes a file to a folder and removes it.
fn write_and_remove(folder: &Path) -> std::io::Result<()> {
    // Other threads and processes may do the same, so the name has the ids of both.
    let path = folder.join(format!(".{}.{:?}", std::process::id(), std::thread::current().id()));
    std::fs::write(&path, "")?;
    std::fs::remove_file(path)
}

/// Parses all variables. `lookup` returns the value of one, if it is set.
fn read(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Environment> {
    let value = |variable| lookup(variable).filter(|value| !value.is_empty());
    let truth = |variable| parsed(variable, value(variable), truth);
    Ok(Environment {
        device: parsed(DEVICE, value(DEVICE), |text| parse_device(text).map_err(|error| error.to_string()))?,
        validation: truth(VALIDATION)?.unwrap_or(false),
        dump: value(DUMP).map(PathBuf::from),
        cache: match lookup(CACHE) {
            None => Cache::User,
            Some(folder) if folder.is_empty() => Cache::Nowhere,
            Some(folder) if cfg!(feature = "disk-cache") => Cache::Folder(folder.into()),
            Some(_) => {
                let message = "marquetry was built without the feature `disk-cache`; add it or unset the variable";
                return Err(Error::Environment { variable: CACHE, message: message.into() });
            }
        },
        tuning: parsed(TUNING, value(TUNING), |text| {
            let known = || tuning::ENTRIES.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
            tuning::entry(text).ok_or_else(|| not_understood(text, &format!("one of {}", known())))
        })?,
        force: parsed(FORCE, value(FORCE), |text| {
            Force::parse(text).ok_or_else(|| not_understood(text, Force::EXPECTED))
        })?
        .unwrap_or_default(),
        level_zero_library: value(LEVEL_ZERO_LIBRARY),
    })
}

/// Parses a value, if there is one. If it is not UTF-8, every parser refuses it, because all of them expect ASCII.
fn parsed<T>(
    variable: &'static str,
    value: Option<OsString>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>> {
    let parsed = value.map(|value| parse(value.to_string_lossy().trim()));
    parsed.transpose().map_err(|message| Error::Environment { variable, message })
}

fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" => Ok(true),
        "0" | "false" | "off" => Ok(false),
        _ => Err(not_understood(text, "1, 0, true, false, on or off")),
    }
}

fn not_understood(text: &str, expected: &str) -> String {
    format!("`{text}` is not understood; write {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 7] = [DEVICE, VALIDATION, DUMP, CACHE, TUNING, FORCE, LEVEL_ZERO_LIBRARY];

    fn with(variable: &str, value: impl Into<OsString>) -> Result<Environment> {
        let value = value.into();
        read(|name| (name == variable).then(|| value.clone()))
    }

    #[test]
    fn unset_and_empty_are_the_default() {
        assert_eq!(read(|_| None).unwrap(), Environment::default());
        let nowhere = Environment { cache: Cache::Nowhere, ..Environment::default() };
        assert_eq!(read(|_| Some(OsString::new())).unwrap(), nowhere);
    }

    #[cfg(feature = "disk-cache")]
    #[test]
    fn every_variable_is_read() {
        let values = [
            (DEVICE, " webgpu:2 "),
            (VALIDATION, "1"),
            (DUMP, "some/dump"),
            (CACHE, "some/cache"),
            (TUNING, "nvidia-hopper"),
            (FORCE, "wgsl,splits=4"),
            (LEVEL_ZERO_LIBRARY, "libze.so"),
        ];
        assert_eq!(values.map(|(name, _)| name), ALL);
        let found = read(|name| values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()));
        let expected = Environment {
            device: Some((BackendKind::WebGpu, 2)),
            validation: true,
            dump: Some("some/dump".into()),
            cache: Cache::Folder("some/cache".into()),
            tuning: tuning::entry("nvidia-hopper"),
            force: Force { wgsl: true, splits: vec![4], ..Force::default() },
            level_zero_library: Some("libze.so".into()),
        };
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn truth_is_spelt_in_many_ways() {
        for (spellings, expected) in [(["1", "true", "On", "TRUE"], true), (["0", "false", "oFF", "False"], false)] {
            for spelling in spellings {
                assert_eq!(with(VALIDATION, spelling).unwrap().validation, expected, "{spelling}");
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_told_with_what_would_be() {
        let truth = "write 1, 0, true, false, on or off";
        for (variable, value, expected) in [
            (DEVICE, "cuda:0", "`cuda:0` names no device; write `vulkan`"),
            (VALIDATION, "yes", truth),
            (TUNING, "nvidia-fermi", "write one of amd, "),
            (FORCE, "garbage", "write words with commas between them: `wgsl`, `addresses`"),
            (FORCE, "splits=3", "or `splits=` with 1, 2, 4 or 8"),
        ] {
            let error = with(variable, value).unwrap_err();
            assert!(matches!(&error, Error::Environment { variable: named, .. } if *named == variable), "{error:?}");
            let text = error.to_string();
            assert!([variable, &format!("`{value}`"), expected].iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[cfg(not(feature = "disk-cache"))]
    #[test]
    fn a_folder_for_binaries_needs_the_disk_cache() {
        assert_eq!(with(CACHE, "").unwrap().cache, Cache::Nowhere);
        let error = with(CACHE, "some/cache").unwrap_err().to_string();
        assert!(error.contains(CACHE) && error.contains("without the feature `disk-cache`"), "{error}");
    }

    #[cfg(all(unix, feature = "disk-cache"))]
    #[test]
    fn what_is_not_utf8_names_files_and_nothing_else() {
        use std::os::unix::ffi::OsStringExt;
        let value = || OsString::from_vec(b"1\xff".to_vec());
        for variable in [DEVICE, VALIDATION, TUNING, FORCE] {
            let error = with(variable, value()).unwrap_err().to_string();
            assert!(error.contains(variable) && error.contains("write "), "{error}");
        }
        assert_eq!(with(DUMP, value()).unwrap().dump, Some(value().into()));
        assert_eq!(with(CACHE, value()).unwrap().cache, Cache::Folder(value().into()));
        assert_eq!(with(LEVEL_ZERO_LIBRARY, value()).unwrap().level_zero_library, Some(value()));
    }

    #[test]
    fn the_page_lists_every_variable() {
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/environment.md"));
        for name in ALL {
            assert_eq!(page.matches(&format!("| `{name}` |")).count(), 1, "{name}");
        }
        assert_eq!(page.matches("| `MARQUETRY_").count(), ALL.len(), "the table has no others");
    }
}
