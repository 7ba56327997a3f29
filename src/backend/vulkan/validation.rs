//! `MARQUETRY_VALIDATION=1`: the Khronos validation layer and its messages.
//!
//! The layer reports through a callback, often on the thread of the call that it objects to. Messages are logged. They
//! are also kept for the whole process, until the next compilation, submission or wait returns them.

use crate::base::error::{Error, Result};
use ash::vk;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::ffi::{CStr, c_void};

/// The layer's name.
pub(super) const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// How to get the layer.
pub(super) const INSTALL_LAYER: &str = "MARQUETRY_VALIDATION=1 needs VK_LAYER_KHRONOS_validation with \
     VK_EXT_validation_features: install the package vulkan-validationlayers or the Vulkan SDK";

/// The checks beyond the layer's defaults. Synchronization validation finds missing barriers.
pub(super) const EXTRA_CHECKS: [vk::ValidationFeatureEnableEXT; 1] =
    [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];

/// Messages that no call has returned yet.
static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the messages kept so far as an error, and forgets them.
pub(super) fn check() -> Result<()> {
    let messages = std::mem::take(&mut *MESSAGES.lock());
    if messages.is_empty() { Ok(()) } else { Err(Error::Validation { message: messages.join("\n") }) }
}

/// Returns the settings of the messenger: it gets every message that is a warning or worse.
pub(super) fn messenger() -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR)
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::GENERAL
                | vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION
                | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
        )
        .pfn_user_callback(Some(on_message))
}

/// Returns whether a message objects to what this crate does. With the type GENERAL, the loader reports drivers that it
/// skips. With a timeout of its state, the layer (1.3.239) says that its own thread did not follow within ten seconds,
/// "most likely a validation bug": a machine may have been stopped meanwhile.
fn objects(kind: vk::DebugUtilsMessageTypeFlagsEXT, message: &str) -> bool {
    kind != vk::DebugUtilsMessageTypeFlagsEXT::GENERAL && !message.contains("-state-timeout")
}

/// Takes one message, logs it, and keeps it if it objects to what this crate does.
unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    _user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the specification promises a valid structure for the duration of the call.
    let data = unsafe { data.as_ref() };
    // SAFETY: the strings of that structure are null or NUL-terminated, and live as long as it.
    let message = data.map_or(Cow::Borrowed("no data"), |data| unsafe { text(data.p_message) }).into_owned();
    if objects(kind, &message) {
        log::error!("Vulkan validation: {message}");
        MESSAGES.lock().push(message);
    } else {
        log::warn!("Vulkan's loader or layer: {message}");
    }
    vk::FALSE
}

/// Returns the text of a C string that may be null.
///
/// # Safety
/// A pointer that is not null must point to a NUL-terminated string that outlives `'a`.
unsafe fn text<'a>(string: *const std::ffi::c_char) -> Cow<'a, str> {
    if string.is_null() {
        return Cow::Borrowed("no text");
    }
    // SAFETY: not null, and the caller promises the rest.
    unsafe { CStr::from_ptr(string) }.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_of_the_layer_are_no_objections() {
        use vk::DebugUtilsMessageTypeFlagsEXT as Kind;
        let stall = "Validation Error: [ UNASSIGNED-VkFence-state-timeout ] Timeout waiting for fence state to update.";
        assert!(!objects(Kind::VALIDATION, stall) && !objects(Kind::GENERAL, "no driver"));
        assert!(objects(Kind::VALIDATION, "Validation Error: [ SYNC-HAZARD-READ-AFTER-WRITE ]"));
    }
}
