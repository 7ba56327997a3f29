//! Pointers that an application hands over.
//!
//! The C interface leaves it to the application that pointers are valid. That trust is given once, where a function's
//! arguments are turned into these types (`tables.rs`); the rest of the driver reads and writes through them.

use crate::Outcome;
use crate::ffi::ResultCode;
use std::ffi::{CStr, c_char, c_void};

/// A pointer to one or several `T` of the application, or null. It is valid for the duration of the call.
pub struct Pointer<T> {
    raw: *mut T,
}

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

/// An argument as it comes from C, and what the driver makes of it.
pub trait Argument {
    /// The driver's form of it.
    type Checked;

    /// # Safety
    /// A pointer is null, or valid for what the interface says that the function does with it.
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
        // SAFETY: `Argument::checked` got a valid pointer; C promises no alignment for the bytes of an argument.
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
        // SAFETY: the interface has strings end with a NUL.
        Ok(unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned())
    }
}

/// The protocol of all functions that list things: a count of 0 asks how many there are, any other says how many fit.
pub fn list<T: Copy>(count: Pointer<u32>, items: Pointer<T>, available: &[T]) -> Outcome {
    let capacity = count.read()? as usize;
    if capacity == 0 || items.is_null() {
        return count.write(available.len() as u32);
    }
    let fitting = &available[..capacity.min(available.len())];
    items.write_all(fitting)?;
    count.write(fitting.len() as u32)
}

/// The same for properties that keep the type and the extension pointer which the application wrote into each.
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

/// Copies text into the fixed array of a property, cut where it does not fit.
pub fn copy_text<const N: usize>(text: &str, array: &mut [c_char; N]) {
    *array = [0; N];
    for (slot, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *slot = byte as c_char;
    }
}
