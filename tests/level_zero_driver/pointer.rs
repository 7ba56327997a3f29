//! Pointers from the application.
//!
//! In the C interface, the application promises that its pointers are valid. The driver relies on this promise in one
//! place: `tables.rs` turns a function's arguments into these types. The rest of the driver reads and writes
//! through them.

use crate::Outcome;
use crate::ffi::ResultCode;
use std::ffi::{CStr, c_char, c_void};

/// A pointer to one or several `T` of the application, or null. It is valid during the call.
pub struct Pointer<T> {
    raw: *mut T,
}

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

/// An argument from C, and its form in the driver.
pub trait Argument {
    /// The driver's form of the argument.
    type Checked;

    /// # Safety
    /// The pointer must be null, or valid for the uses that the interface states for the function.
    unsafe fn checked(self) -> Self::Checked;
}

impl<T> Argument for *mut T {
    type Checked = Pointer<T>;

    unsafe fn checked(self) -> Pointer<T> {
        Pointer { raw: self }
    }
}

impl<T> Argument for *const T {
    type Checked = Pointer<T>;

    unsafe fn checked(self) -> Pointer<T> {
        Pointer { raw: self.cast_mut() }
    }
}

impl<T> Pointer<T> {
    pub fn is_null(self) -> bool {
        self.raw.is_null()
    }

    pub fn address(self) -> usize {
        self.raw as usize
    }

    fn present(self) -> Outcome<*mut T> {
        if self.is_null() { Err(ResultCode::ERROR_INVALID_NULL_POINTER) } else { Ok(self.raw) }
    }
}

impl<T: Copy> Pointer<T> {
    pub fn read(self) -> Outcome<T> {
        let raw = self.present()?;
        // SAFETY: `Argument::checked` got a valid pointer. C promises no alignment for the bytes of an argument.
        Ok(unsafe { raw.read_unaligned() })
    }

    pub fn write(self, value: T) -> Outcome {
        let raw = self.present()?;
        // SAFETY: as above, and the interface says that the function writes there.
        unsafe { raw.write_unaligned(value) };
        Ok(())
    }

    pub fn write_if_present(self, value: T) {
        let _ = self.write(value);
    }

    pub fn read_all(self, count: usize) -> Outcome<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let raw = self.present()?;
        // SAFETY: as in `read`, for `count` elements.
        Ok((0..count).map(|index| unsafe { raw.add(index).read_unaligned() }).collect())
    }

    pub fn write_all(self, values: &[T]) -> Outcome {
        let raw = self.present()?;
        for (index, &value) in values.iter().enumerate() {
            // SAFETY: as in `write`, for all elements.
            unsafe { raw.add(index).write_unaligned(value) };
        }
        Ok(())
    }
}

impl Pointer<c_void> {
    pub fn bytes(self) -> Pointer<u8> {
        Pointer { raw: self.raw.cast() }
    }
}

impl Pointer<c_char> {
    pub fn text(self) -> Outcome<String> {
        let raw = self.present()?;
        // SAFETY: the interface requires strings to end with a NUL.
        Ok(unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned())
    }
}

/// Implements the protocol of all listing functions. A count of 0 asks for the number of items; any other count is the
/// room for items.
pub fn list<T: Copy>(count: Pointer<u32>, items: Pointer<T>, available: &[T]) -> Outcome {
    let capacity = count.read()? as usize;
    if capacity == 0 || items.is_null() {
        return count.write(available.len() as u32);
    }
    let fitting = &available[..capacity.min(available.len())];
    items.write_all(fitting)?;
    count.write(fitting.len() as u32)
}

/// As [`list`], for properties that keep the type and the extension pointer that the application wrote into each.
pub fn list_with<T: Copy>(
    count: Pointer<u32>,
    items: Pointer<T>,
    available: usize,
    fill: impl Fn(usize, &mut T),
) -> Outcome {
    let capacity = (count.read()? as usize).min(available);
    if capacity == 0 || items.is_null() {
        return count.write(available as u32);
    }
    let mut properties = items.read_all(capacity)?;
    properties.iter_mut().enumerate().for_each(|(index, item)| fill(index, item));
    items.write_all(&properties)?;
    count.write(capacity as u32)
}

/// Copies text into the fixed array of a property, and truncates text that does not fit.
pub fn copy_text<const N: usize>(text: &str, array: &mut [c_char; N]) {
    *array = [0; N];
    for (slot, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *slot = byte as c_char;
    }
}
