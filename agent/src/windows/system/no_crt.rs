//! The names that compiled code expects a C runtime to define. agent.dll has none: its loader entry
//! is DllMain itself, it has no thread-local storage, and no block of the target's heap is its own.
//!
//! In assembly, because rustc would export functions of these names. Each is a jump to the function
//! that does the work.

#![cfg(not(test))]
#![allow(dead_code, reason = "the linker finds the functions by their names")]

use core::ffi::c_void;

use crate::record::c_memory::{compare, copy, copy_overlapping, fill, length};

/// zstd's allocations without a context of its own memory (`stk_format`'s compressor has one): none
/// is ever made, and would be refused.
extern "C" fn no_memory() -> *mut c_void {
    core::ptr::null_mut()
}

/// zstd's frees of such memory.
extern "C" fn free_nothing() {}

/// Defines a symbol as a jump to a function, with the underscore of the C names of x86.
macro_rules! names {
    ($($name:literal => $function:path,)*) => {$(
        #[cfg(target_arch = "x86_64")]
        core::arch::global_asm!(concat!(".globl ", $name), concat!($name, ":"), "jmp {}", sym $function);
        #[cfg(target_arch = "x86")]
        core::arch::global_asm!(concat!(".globl _", $name), concat!("_", $name, ":"), "jmp {}", sym $function);
        #[cfg(target_arch = "aarch64")]
        core::arch::global_asm!(concat!(".globl ", $name), concat!($name, ":"), "b {}", sym $function);
    )*};
}

names! {
    "memcpy" => copy,
    "memmove" => copy_overlapping,
    "memset" => fill,
    "memcmp" => compare,
    "strlen" => length,
    "malloc" => no_memory,
    "calloc" => no_memory,
    "free" => free_nothing,
}

/// What the agent, built with `panic = "abort"`, never calls: an address that only has to exist.
extern "C" fn never() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

// rustup's `core` and `alloc` are built to unwind, so their tables name routines that `std` or a C
// runtime defines. libgcc's would bring an initialiser that makes a semaphore and never closes it.
#[cfg(target_env = "gnu")]
names! {
    "rust_eh_personality" => never,
    "_Unwind_Resume" => never,
}
#[cfg(target_env = "msvc")]
names! {
    "__CxxFrameHandler3" => never,
    "_fltused" => never, // says that there are floating-point numbers
}

// rustc's start-up code for i686-pc-windows-gnu refers to them; it never runs.
#[cfg(all(target_env = "gnu", target_arch = "x86"))]
names! {
    "__register_frame_info" => never,
    "__deregister_frame_info" => never,
}

// What compilers for MSVC call where a frame is larger than a page, and on x86 for 64-bit numbers.
// Other compilers bring it.
#[cfg(all(target_env = "msvc", not(target_arch = "x86")))]
#[link(name = "ntdll.dll", kind = "raw-dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    fn __chkstk();
}
// One underscore more than ntdll's names: that of the C names of x86.
#[cfg(all(target_env = "msvc", target_arch = "x86"))]
#[link(name = "ntdll.dll", kind = "raw-dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    #[link_name = "__alldiv"]
    fn alldiv();
    #[link_name = "__allmul"]
    fn allmul();
    #[link_name = "__allrem"]
    fn allrem();
    #[link_name = "__allshl"]
    fn allshl();
    #[link_name = "__allshr"]
    fn allshr();
    #[link_name = "__aulldiv"]
    fn aulldiv();
    #[link_name = "__aullrem"]
    fn aullrem();
    #[link_name = "__aullshr"]
    fn aullshr();
    #[link_name = "__chkstk"]
    fn chkstk();
}
