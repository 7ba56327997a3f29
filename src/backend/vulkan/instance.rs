//! The process's one Vulkan instance.

use super::validation;
use crate::backend::fork;
use crate::backend::registry;
use crate::backend::units::has_extension;
use crate::base::backend_kind::BackendKind;
use crate::base::environment;
use crate::base::error::{Error, Result};
use ash::{Entry, ext, khr, vk};
use parking_lot::Mutex;
use std::ffi::c_char;

/// The newest API whose structures this backend reads. It reads fewer of them from an older device.
const INSTANCE_API: u32 = vk::API_VERSION_1_3;

/// The oldest API that is usable: it introduced timeline semaphores.
pub(super) const MINIMUM_API: u32 = vk::API_VERSION_1_2;

/// The loaded library and the instance made with it.
///
/// It lives until the process ends, because creating one takes up to 0.3 s, and every backend and listing needs it. A
/// child of the process gets its own, because the drivers' threads belong to the parent.
pub(super) struct Instance {
    /// The functions of the instance.
    pub raw: ash::Instance,
    /// The loaded library.
    pub entry: Entry,
}

/// Returns the instance. The first call in this process that succeeds creates it.
pub(super) fn shared() -> Result<&'static Instance> {
    static SHARED: Mutex<Option<(u32, &'static Instance)>> = Mutex::new(None);
    // Locked meanwhile, so that two threads do not create two instances.
    let mut shared = SHARED.lock();
    match *shared {
        Some((process, instance)) if process == fork::process() => Ok(instance),
        _ => {
            let instance: &Instance = Box::leak(Box::new(Instance::new()?));
            *shared = Some((fork::process(), instance));
            Ok(instance)
        }
    }
}

/// Returns the error for a machine on which Vulkan cannot be used. It says what to install.
pub(super) fn unavailable(problem: impl std::fmt::Display) -> Error {
    registry::no_driver(BackendKind::Vulkan, problem)
}

impl Instance {
    fn new() -> Result<Instance> {
        // SAFETY: loading the system's Vulkan library runs its initialisers, which is what a Vulkan program asks for.
        let entry = unsafe { Entry::load() }.map_err(|e| unavailable(format_args!("no Vulkan loader: {e}")))?;
        // SAFETY: the entry is loaded.
        let version =
            unsafe { entry.try_enumerate_instance_version() }.map_err(failed("vkEnumerateInstanceVersion"))?;
        if version.unwrap_or(vk::API_VERSION_1_0) < MINIMUM_API {
            return Err(unavailable("the Vulkan loader is older than version 1.2"));
        }
        let raw = if environment::settings().validation {
            create_validated(&entry)?
        } else {
            create(&entry, Setup::new(&entry)?)?
        };
        Ok(Instance { raw, entry })
    }
}

/// Returns a function that converts the failure of a call at start-up.
fn failed(call: &'static str) -> impl Fn(vk::Result) -> Error {
    move |result| unavailable(format_args!("{call}: {result}"))
}

/// The settings of an instance.
struct Setup<'a> {
    flags: vk::InstanceCreateFlags,
    layers: Vec<*const c_char>,
    extensions: Vec<*const c_char>,
    chained: Option<(vk::ValidationFeaturesEXT<'a>, vk::DebugUtilsMessengerCreateInfoEXT<'a>)>,
}

impl Setup<'_> {
    /// Returns the least. On Apple's systems this includes drivers that are not fully conformant, such as MoltenVK.
    fn new(entry: &Entry) -> Result<Self> {
        // SAFETY: the entry is loaded.
        let offered = unsafe { entry.enumerate_instance_extension_properties(None) }
            .map_err(failed("vkEnumerateInstanceExtensionProperties"))?;
        let portability = cfg!(target_vendor = "apple") && has_extension(&offered, khr::portability_enumeration::NAME);
        let (flags, extensions) = if portability {
            (vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR, vec![khr::portability_enumeration::NAME.as_ptr()])
        } else {
            (vk::InstanceCreateFlags::empty(), Vec::new())
        };
        Ok(Setup { flags, layers: Vec::new(), extensions, chained: None })
    }
}

/// Creates an instance.
fn create(entry: &Entry, mut setup: Setup<'_>) -> Result<ash::Instance> {
    let application = vk::ApplicationInfo::default().engine_name(c"marquetry").api_version(INSTANCE_API);
    let mut info = vk::InstanceCreateInfo::default()
        .flags(setup.flags)
        .application_info(&application)
        .enabled_layer_names(&setup.layers)
        .enabled_extension_names(&setup.extensions);
    if let Some((features, messenger)) = &mut setup.chained {
        info = info.push_next(features).push_next(messenger);
    }
    // SAFETY: all that `info` points to outlives the call.
    unsafe { entry.create_instance(&info, None) }.map_err(failed("vkCreateInstance"))
}

/// Creates an instance with the validation layer and a messenger that listens to it.
fn create_validated(entry: &Entry) -> Result<ash::Instance> {
    // SAFETY: the entry is loaded. The call fails if the layer is not there.
    let offered = unsafe { entry.enumerate_instance_extension_properties(Some(validation::LAYER)) };
    if !offered.is_ok_and(|offered| has_extension(&offered, ext::validation_features::NAME)) {
        return Err(registry::unavailable(BackendKind::Vulkan, validation::INSTALL_LAYER));
    }
    let mut setup = Setup::new(entry)?;
    setup.layers.push(validation::LAYER.as_ptr());
    setup.extensions.extend([ext::validation_features::NAME.as_ptr(), ext::debug_utils::NAME.as_ptr()]);
    // The chained messenger hears the instance's creation. Another one, created below, hears all that follows.
    let features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&validation::EXTRA_CHECKS);
    setup.chained = Some((features, validation::messenger()));
    let raw = create(entry, setup)?;
    let messengers = ext::debug_utils::Instance::new(entry, &raw);
    // SAFETY: the extension is enabled. The messenger lives as long as the instance, to the end of the process.
    unsafe { messengers.create_debug_utils_messenger(&validation::messenger(), None) }
        .map_err(failed("vkCreateDebugUtilsMessengerEXT"))?;
    Ok(raw)
}
