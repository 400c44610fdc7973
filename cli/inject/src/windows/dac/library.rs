//! A data access library: finds it, checks whether it may be loaded, and gets names of addresses
//! from it.
//!
//! Its interfaces are the runtime's own (xclrdata.idl, sospriv.idl in dotnet/runtime):
//! IXCLRDataProcess, which every version has, names an address; ISOSDacInterface, where there is
//! one (.NET Framework 4.5, .NET Core), adds the module and the method's bounds. Only the slots
//! used here have constants, with their numbers in the table of functions. The numbers have never
//! changed.

use super::candidate::{LibraryCandidate, LibraryError};
use super::file::LibraryFile;
use super::target::{self, DataTarget};
use crate::dac::mailbox::{self, Answer};
use crate::dac::runtime;
use crate::dac::symbol_path::{self, SymbolPath};
use crate::image::{self, Image};
use crate::trust::IntegrityLevel;
use crate::windows::process::Process;
use crate::windows::system::{self, Procedure};
use std::collections::HashMap;
use std::ffi::{OsString, c_void};
use std::os::windows::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use stk_schema::event::RuntimeKind;
use windows_sys::Win32::Foundation::E_NOINTERFACE;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};
use windows_sys::Win32::System::SystemInformation::GetSystemWindowsDirectoryW;
use windows_sys::Win32::System::Threading::PROCESS_VM_READ;
use windows_sys::core::{GUID, HRESULT};
use windows_sys::s;

const IID_PROCESS: GUID = GUID::from_u128(0x5c552ab6_fc09_4cb3_8e36_22fa03c798b7);
const IID_SOS: GUID = GUID::from_u128(0x436f00f2_b42a_4b9f_870c_e73db66ae930);

/// IUnknown::QueryInterface and Release.
const QUERY_INTERFACE: usize = 0;
const RELEASE: usize = 2;
/// IXCLRDataProcess::Flush and GetRuntimeNameByAddress.
const FLUSH: usize = 3;
const NAME_BY_ADDRESS: usize = 15;
/// ISOSDacInterface::GetModule, GetMethodDescData, GetCodeHeaderData.
const MODULE: usize = 12;
const METHOD_DESC_DATA: usize = 20;
const CODE_HEADER_DATA: usize = 26;
/// IXCLRDataModule::GetFileName.
const FILE_NAME: usize = 30;

/// The library was made for another build of the runtime:
/// CORDBG_E_MISMATCHED_CORWKS_AND_DACWKS_DLLS, or CORDBG_E_MISSING_DEBUGGER_EXPORTS if the other
/// build's tables lie elsewhere.
const MISMATCHED: [u32; 2] = [0x8013_1c39, 0x8013_1c4f];
/// UTF-16 units of a name.
const NAME_UNITS: usize = 4096;
/// Modules whose paths are remembered between two flushes.
const MOST_MODULES: usize = 4096;

/// The library could not read the data that it needed for an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFailure {
    /// The library's HRESULT.
    pub code: u32,
}

/// A COM object: the address of one, which begins with the address of its table of functions.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Object(*mut *const *const c_void);

/// A library that answers.
pub(super) struct Library {
    title: String,
    process: Object,
    target: &'static DataTarget,
    sos: Option<Object>,
    /// The form of its GCInfo is known.
    gc_info: bool,
    /// Paths of modules by the runtime's address of them.
    modules: HashMap<u64, String>,
}

impl Library {
    /// The library of the runtime at `runtime` in `process`: the first one found of its build.
    pub(super) fn open(
        process: &Process,
        rank: IntegrityLevel,
        runtime: u64,
        kind: u32,
        symbols: &SymbolPath,
    ) -> Result<Library, LibraryError> {
        let Some(kind) = RuntimeKind::from_number(kind.into()) else {
            return Err(LibraryError::lasting(format!(
                "a runtime of kind {kind} is not known to this inject"
            )));
        };
        let at = RuntimeModule { module: process.module_path(runtime), base: runtime };
        let read = |rva: u32, buffer: &mut [u8]| {
            runtime.checked_add(rva.into()).is_some_and(|address| process.read(address, buffer))
        };
        let reported = runtime::Runtime::read(kind, read);
        let reported = reported.unwrap_or_else(|_| runtime::Runtime::unread(kind, image::own_machine()));
        let mut failure = None;
        let places = beside(&at.module, &reported);
        for candidate in places.iter().cloned().chain(on_symbol_path(symbols, &reported)) {
            let opened = match LibraryFile::open(&candidate, rank) {
                Ok(None) => continue,
                Ok(Some(file)) => Library::try_open(process, &at, &reported, &candidate, &file),
                Err(error) => Err(error),
            };
            match opened {
                Err(error) if !error.may_pass => failure = failure.or(Some(error.text)),
                result => return result,
            }
        }
        let shown = || places.iter().map(|place| place.path.display().to_string()).collect::<Vec<_>>();
        let text = failure.unwrap_or_else(|| format!("there is no {}", shown().join(" and no ")));
        Err(LibraryError::lasting(text + &symbols.not_found(&reported)))
    }

    fn try_open(
        process: &Process,
        runtime: &RuntimeModule,
        reported: &runtime::Runtime,
        candidate: &LibraryCandidate,
        file: &LibraryFile,
    ) -> Result<Library, LibraryError> {
        check(reported, candidate, &file.bytes)?;
        let path = &file.path;
        let title = file_name(path);
        let wide = system::wide(path.as_os_str());
        // SAFETY: the path is absolute and zero-terminated. The code that runs on loading is the
        // runtime vendor's.
        let library = unsafe {
            // A folder that other users may write, or one of the symbol path, may hold other DLLs
            // than the library's.
            let own = if file.permit.own_folder { LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR } else { 0 };
            LoadLibraryExW(wide.as_ptr(), ptr::null_mut(), own | LOAD_LIBRARY_SEARCH_SYSTEM32)
        };
        if library.is_null() {
            let error = std::io::Error::last_os_error();
            return Err(LibraryError::lasting(format!("{} cannot be loaded: {error}", path.display())));
        }
        // SAFETY: the module is loaded and the name zero-terminated.
        let Some(create) = (unsafe { GetProcAddress(library, s!("CLRDataCreateInstance")) }) else {
            return Err(LibraryError::lasting(format!("{} is no data access library", path.display())));
        };
        let handle = process.narrowed(PROCESS_VM_READ);
        let handle =
            handle.map_err(|error| LibraryError { text: format!("no handle: {error}"), may_pass: true })?;
        let own_name = file_name(&runtime.module);
        // For a runtime linked into a program, the library may also use the runtime's usual name.
        let names = if reported.kind == RuntimeKind::SingleFile {
            [&*own_name, "coreclr.dll"]
        } else {
            [&*own_name; 2]
        };
        let target = DataTarget::leaked(handle, image::own_machine(), runtime.base, &names);
        type Create = unsafe extern "system" fn(*const GUID, *const DataTarget, *mut Object) -> HRESULT;
        let mut object = Object(ptr::null_mut());
        // SAFETY: the export is declared so in clrdata.idl, and the object that it gets is a whole
        // ICLRDataTarget that stays.
        let result = unsafe {
            let create = std::mem::transmute::<Procedure, Create>(create);
            create(&IID_PROCESS, target, &mut object)
        };
        if result != 0 || object.0.is_null() {
            let code = result as u32;
            let mismatched = MISMATCHED.contains(&code);
            let text = if mismatched {
                format!("{} is not of the version of the runtime in {own_name}", path.display())
            } else {
                format!("{title} cannot read the runtime (error {code:#010x})")
            };
            return Err(LibraryError { text, may_pass: !mismatched });
        }
        let sos = object.query(&IID_SOS);
        Ok(Library {
            title,
            process: object,
            target,
            sos,
            gc_info: reported.has_known_gc_info(),
            modules: HashMap::new(),
        })
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Clears the library's cache of the process's memory, because the process keeps running.
    pub(super) fn refresh(&mut self) {
        type Flush = unsafe extern "system" fn(Object) -> HRESULT;
        // SAFETY: the slot's declaration.
        unsafe { self.process.function::<Flush>(FLUSH)(self.process) };
        self.target.refresh();
        self.modules.clear();
    }

    /// The name of the code at `address`; `None` if the runtime knows no code there.
    ///
    /// # Errors
    /// The library could not read the runtime's structures, which change while it reads.
    pub(super) fn name(&mut self, address: u64) -> Result<Option<Answer>, ReadFailure> {
        type NameByAddress =
            unsafe extern "system" fn(Object, u64, u32, u32, *mut u32, *mut u16, *mut u64) -> HRESULT;
        let mut text = vec![0u16; NAME_UNITS];
        let (mut len, mut displacement) = (0, 0);
        // SAFETY: the slot's declaration; the library writes at most the given number of units.
        let result = unsafe {
            let named = self.process.function::<NameByAddress>(NAME_BY_ADDRESS);
            let at = target::clr_address(address);
            named(self.process, at, 0, text.len() as u32, &mut len, text.as_mut_ptr(), &mut displacement)
        };
        // S_FALSE means that the name was cut.
        match result {
            E_NOINTERFACE => return Ok(None),
            ..0 => return Err(ReadFailure { code: result as u32 }),
            _ => {}
        }
        let text = until_zero(&text);
        let code = self.sos.and_then(|sos| code_header(sos, address));
        let module = code.and_then(|code| self.module_of(code.method)).unwrap_or_default();
        let name = mailbox::full_name(&module, &text);
        let (base, size) = code.and_then(|code| code.around(address)).unwrap_or((0, 0));
        let gc_info = code.filter(|_| self.gc_info).and_then(|code| code.gc_info()).unwrap_or(0);
        Ok((!name.is_empty()).then_some(Answer { base, size, gc_info, name }))
    }

    /// Path of the module that a method is of.
    fn module_of(&mut self, method: u64) -> Option<String> {
        let sos = self.sos?;
        let module = method_module(sos, method)?;
        if let Some(path) = self.modules.get(&module) {
            return Some(path.clone());
        }
        let path = module_path(sos, module).unwrap_or_default();
        if self.modules.len() < MOST_MODULES {
            self.modules.insert(module, path.clone());
        }
        Some(path)
    }
}

impl Object {
    /// The function in a slot of the object's table.
    ///
    /// # Safety
    /// The interface's slot must hold a function of type `F`, itself a function pointer.
    unsafe fn function<F: Copy>(self, slot: usize) -> F {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        // SAFETY: a COM object begins with the address of its table; the rest by the caller's
        // promise.
        unsafe { (*self.0).add(slot).cast::<F>().read() }
    }

    fn query(self, iid: &GUID) -> Option<Object> {
        type Query = unsafe extern "system" fn(Object, *const GUID, *mut Object) -> HRESULT;
        let mut object = Object(ptr::null_mut());
        // SAFETY: the slot's declaration (IUnknown).
        let result = unsafe { self.function::<Query>(QUERY_INTERFACE)(self, iid, &mut object) };
        (result >= 0 && !object.0.is_null()).then_some(object)
    }

    fn release(self) {
        type Release = unsafe extern "system" fn(Object) -> u32;
        // SAFETY: the slot's declaration (IUnknown); the caller has no further use for the object.
        unsafe { self.function::<Release>(RELEASE)(self) };
    }
}

/// A struct that the library fills (dacprivate.h), with room for later versions of it.
#[repr(C, align(8))]
struct ReplyBuffer([u64; 64]);

impl ReplyBuffer {
    const BLANK: ReplyBuffer = ReplyBuffer([0; 64]);

    fn u64_at(&self, offset: usize) -> u64 {
        self.0[offset / 8]
    }

    fn u32_at(&self, offset: usize) -> u32 {
        (self.0[offset / 8] >> (offset % 8 * 8)) as u32
    }
}

/// DacpCodeHeaderData, as far as it is used.
#[derive(Clone, Copy)]
struct CodeHeader {
    gc_info: u64,
    compiled_at_run_time: bool,
    method: u64,
    start: u64,
    size: u64,
    cold_start: u64,
    cold_size: u64,
    hot_size: u64,
}

impl CodeHeader {
    /// Address of the GCInfo of a method that was compiled at run time, in one piece.
    fn gc_info(&self) -> Option<u64> {
        Some(self.gc_info).filter(|_| self.compiled_at_run_time && self.cold_size == 0)
    }

    /// The part of the method that holds an address: first address and bytes.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let hot = if self.hot_size == 0 { self.size } else { self.hot_size };
        [(self.start, hot), (self.cold_start, self.cold_size)]
            .into_iter()
            .find(|&(start, size)| start != 0 && address.checked_sub(start).is_some_and(|at| at < size))
    }
}

fn code_header(sos: Object, address: u64) -> Option<CodeHeader> {
    type CodeHeaderData = unsafe extern "system" fn(Object, u64, *mut ReplyBuffer) -> HRESULT;
    let mut data = ReplyBuffer::BLANK;
    // SAFETY: the slot's declaration; the struct has 56 bytes, and there is room for 512.
    let result = unsafe {
        let at = target::clr_address(address);
        sos.function::<CodeHeaderData>(CODE_HEADER_DATA)(sos, at, &mut data)
    };
    /// JITTypes.
    const TYPE_JIT: u32 = 1;
    (result == 0).then(|| CodeHeader {
        gc_info: target::address(data.u64_at(0)),
        compiled_at_run_time: data.u32_at(8) == TYPE_JIT,
        method: data.u64_at(16),
        start: target::address(data.u64_at(24)),
        size: data.u32_at(32).into(),
        cold_start: target::address(data.u64_at(40)),
        cold_size: data.u32_at(48).into(),
        hot_size: data.u32_at(52).into(),
    })
}

/// DacpMethodDescData.ModulePtr.
fn method_module(sos: Object, method: u64) -> Option<u64> {
    type MethodDescData =
        unsafe extern "system" fn(Object, u64, u64, *mut ReplyBuffer, u32, *mut c_void, *mut u32) -> HRESULT;
    let mut data = ReplyBuffer::BLANK;
    // SAFETY: the slot's declaration; the struct has 152 bytes, and there is room for 512. No list
    // of earlier versions is requested.
    let result = unsafe {
        let describe = sos.function::<MethodDescData>(METHOD_DESC_DATA);
        describe(sos, method, 0, &mut data, 0, ptr::null_mut(), ptr::null_mut())
    };
    (result == 0).then(|| data.u64_at(48)).filter(|&module| module != 0)
}

fn module_path(sos: Object, module: u64) -> Option<String> {
    type Module = unsafe extern "system" fn(Object, u64, *mut Object) -> HRESULT;
    type FileName = unsafe extern "system" fn(Object, u32, *mut u32, *mut u16) -> HRESULT;
    let mut object = Object(ptr::null_mut());
    // SAFETY: the slot's declaration.
    let result = unsafe { sos.function::<Module>(MODULE)(sos, module, &mut object) };
    if result < 0 || object.0.is_null() {
        return None;
    }
    let mut text = vec![0u16; NAME_UNITS];
    let mut len = 0;
    // SAFETY: the slot's declaration; the library writes at most the given number of units.
    let result = unsafe {
        object.function::<FileName>(FILE_NAME)(object, text.len() as u32, &mut len, text.as_mut_ptr())
    };
    object.release();
    (result >= 0).then(|| until_zero(&text))
}

fn until_zero(units: &[u16]) -> String {
    let end = units.iter().position(|&unit| unit == 0).unwrap_or(units.len());
    String::from_utf16_lossy(&units[..end])
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

struct RuntimeModule {
    module: PathBuf,
    base: u64,
}

/// The usual files of a runtime's library: beside the runtime, or, for .NET Framework, in the
/// system's folder of its version.
fn beside(module: &Path, reported: &runtime::Runtime) -> Vec<LibraryCandidate> {
    let name = reported.library_name();
    let mut places = vec![module.with_file_name(name)];
    if reported.kind == RuntimeKind::Framework {
        let framework = if size_of::<usize>() == 8 { "Framework64" } else { "Framework" };
        let old = file_name(module).eq_ignore_ascii_case("mscorwks.dll");
        let version = if old { "v2.0.50727" } else { "v4.0.30319" };
        let folder = windows_folder().join("Microsoft.NET").join(framework);
        places.push(folder.join(version).join(name));
    }
    let candidate = |path| LibraryCandidate { path, beside: true, named: false, index: None };
    places.into_iter().map(candidate).collect()
}

/// Its possible files on the symbol path.
fn on_symbol_path(symbols: &SymbolPath, reported: &runtime::Runtime) -> Vec<LibraryCandidate> {
    let candidate = |found: symbol_path::Candidate| LibraryCandidate {
        path: std::path::absolute(&found.path).unwrap_or(found.path),
        beside: false,
        named: found.named,
        index: reported.library.filter(|_| !found.indexed),
    };
    symbols.candidates(reported).into_iter().map(candidate).collect()
}

/// Whether it is the runtime's library.
fn check(
    reported: &runtime::Runtime,
    candidate: &LibraryCandidate,
    bytes: &[u8],
) -> Result<(), LibraryError> {
    let shown = candidate.path.display();
    let image =
        Image::from_file(bytes).map_err(|error| LibraryError::lasting(format!("{shown} is {error}")))?;
    if image.machine != image::own_machine() {
        let (theirs, ours) = (image::machine_name(image.machine), image::machine_name(image::own_machine()));
        return Err(LibraryError::lasting(format!("{shown} is built for {theirs}, this inject for {ours}")));
    }
    if let Some(index) = candidate.index.filter(|&index| !runtime::is_of(image.identity, index)) {
        let version = reported.version.map(|version| format!(" {version}")).unwrap_or_default();
        let text = format!("{shown} is not of the runtime's version{version} (its index would be {index})");
        return Err(LibraryError::lasting(text));
    }
    Ok(())
}

fn windows_folder() -> PathBuf {
    let mut path = [0u16; 260];
    // SAFETY: pointer and length are those of the array.
    let len = unsafe { GetSystemWindowsDirectoryW(path.as_mut_ptr(), path.len() as u32) } as usize;
    OsString::from_wide(&path[..if len < path.len() { len } else { 0 }]).into()
}
