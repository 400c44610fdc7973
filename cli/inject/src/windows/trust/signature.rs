//! Finds who has signed a file, by its embedded Authenticode signature. It does not use the
//! network.

use crate::windows::system::{self, Procedure};
use std::ffi::CStr;
use std::fs::File;
use std::mem::transmute;
use std::os::windows::io::AsRawHandle as _;
use std::path::Path;
use std::ptr;
use windows_sys::Win32::Foundation::{HANDLE, HWND};
use windows_sys::Win32::Security::Cryptography::{
    CERT_CHAIN_CONTEXT, CERT_CHAIN_POLICY_MICROSOFT_ROOT, CERT_CHAIN_POLICY_PARA, CERT_CHAIN_POLICY_STATUS,
    CERT_CONTEXT, CTL_USAGE,
};
use windows_sys::Win32::Security::WinTrust::{
    CRYPT_PROVIDER_CERT, CRYPT_PROVIDER_DATA, CRYPT_PROVIDER_SGNR, WINTRUST_ACTION_GENERIC_VERIFY_V2,
    WINTRUST_DATA, WINTRUST_DATA_0, WINTRUST_FILE_INFO, WTD_CACHE_ONLY_URL_RETRIEVAL, WTD_CHOICE_FILE,
    WTD_REVOKE_NONE, WTD_STATEACTION_CLOSE, WTD_STATEACTION_VERIFY, WTD_UI_NONE,
};
use windows_sys::core::{BOOL, GUID, PCSTR};

/// Enhanced key usage of the certificate with which Microsoft signs data access libraries and
/// nothing else ("CN=.NET DAC"); the debuggers ask for it too (dotnet/diagnostics,
/// src/SOS/SOS.Hosting/RuntimeLibraryProvider.cs).
const DATA_ACCESS_LIBRARY: &CStr = c"1.3.6.1.4.1.311.84.4.1";
/// CERT_FIND_EXT_ONLY_ENHKEY_USAGE_FLAG: uses the certificate's own extension, not properties that
/// this machine adds.
const EXTENSION_ONLY: u32 = 2;

type Verify = unsafe extern "system" fn(HWND, *mut GUID, *mut WINTRUST_DATA) -> i32;
type ProviderData = unsafe extern "system" fn(HANDLE) -> *mut CRYPT_PROVIDER_DATA;
type SignerOf =
    unsafe extern "system" fn(*mut CRYPT_PROVIDER_DATA, u32, BOOL, u32) -> *mut CRYPT_PROVIDER_SGNR;
type CertificateOf = unsafe extern "system" fn(*mut CRYPT_PROVIDER_SGNR, u32) -> *mut CRYPT_PROVIDER_CERT;
type VerifyChain = unsafe extern "system" fn(
    PCSTR,
    *const CERT_CHAIN_CONTEXT,
    *const CERT_CHAIN_POLICY_PARA,
    *mut CERT_CHAIN_POLICY_STATUS,
) -> BOOL;
type Usage = unsafe extern "system" fn(*const CERT_CONTEXT, u32, *mut CTL_USAGE, *mut u32) -> BOOL;

/// The functions, from DLLs that inject loads only for this.
struct SignatureApi {
    provider_data: ProviderData,
    signer: SignerOf,
    certificate: CertificateOf,
    verify_chain: VerifyChain,
    usage: Usage,
}

impl SignatureApi {
    fn load() -> Option<SignatureApi> {
        let wintrust = |name| system::system_dll(c"wintrust.dll", name);
        let crypt32 = |name| system::system_dll(c"crypt32.dll", name);
        // SAFETY: the types are the documented signatures of these functions.
        unsafe {
            Some(SignatureApi {
                provider_data: transmute::<Procedure, ProviderData>(wintrust(
                    c"WTHelperProvDataFromStateData",
                )?),
                signer: transmute::<Procedure, SignerOf>(wintrust(c"WTHelperGetProvSignerFromChain")?),
                certificate: transmute::<Procedure, CertificateOf>(wintrust(
                    c"WTHelperGetProvCertFromChain",
                )?),
                verify_chain: transmute::<Procedure, VerifyChain>(crypt32(
                    c"CertVerifyCertificateChainPolicy",
                )?),
                usage: transmute::<Procedure, Usage>(crypt32(c"CertGetEnhancedKeyUsage")?),
            })
        }
    }

    /// Whether the first signer's chain ends in one of Microsoft's roots and its certificate is for
    /// data access libraries.
    ///
    /// # Safety
    /// `state` must be the state of a verification that has succeeded and is not closed.
    unsafe fn is_makers(&self, state: HANDLE) -> bool {
        // SAFETY: by the caller's promise; each pointer is checked before it is followed, and
        // belongs to the state.
        unsafe {
            let data = (self.provider_data)(state);
            if data.is_null() {
                return false;
            }
            let signer = (self.signer)(data, 0, 0, 0);
            if signer.is_null() || (*signer).pChainContext.is_null() {
                return false;
            }
            let asked = CERT_CHAIN_POLICY_PARA {
                cbSize: size_of::<CERT_CHAIN_POLICY_PARA>() as u32,
                ..CERT_CHAIN_POLICY_PARA::default()
            };
            let mut status = CERT_CHAIN_POLICY_STATUS {
                cbSize: size_of::<CERT_CHAIN_POLICY_STATUS>() as u32,
                ..CERT_CHAIN_POLICY_STATUS::default()
            };
            let chain = (*signer).pChainContext;
            let known =
                (self.verify_chain)(CERT_CHAIN_POLICY_MICROSOFT_ROOT, chain, &asked, &mut status) != 0;
            let certificate = (self.certificate)(signer, 0);
            known
                && status.dwError == 0
                && !certificate.is_null()
                && !(*certificate).pCert.is_null()
                && self.has_usage((*certificate).pCert, DATA_ACCESS_LIBRARY)
        }
    }

    /// Whether the certificate's own extension names this usage.
    ///
    /// # Safety
    /// `certificate` must be one.
    unsafe fn has_usage(&self, certificate: *const CERT_CONTEXT, wanted: &CStr) -> bool {
        let mut words = [0u64; 512];
        let mut size = size_of_val(&words) as u32;
        let usage = words.as_mut_ptr().cast::<CTL_USAGE>();
        // SAFETY: the buffer has the size that is passed and is aligned for the struct, which the
        // system lays out in it, texts included.
        unsafe {
            if (self.usage)(certificate, EXTENSION_ONLY, usage, &mut size) == 0 {
                return false;
            }
            let CTL_USAGE { cUsageIdentifier: count, rgpszUsageIdentifier: names } = *usage;
            (0..count as usize).any(|index| CStr::from_ptr((*names.add(index)).cast()) == wanted)
        }
    }
}

/// Whether the runtime's maker, Microsoft, has signed the open file at `path` as a data access
/// library, and it has not been changed since.
pub(crate) fn is_data_access_library(file: &File, path: &Path) -> bool {
    let Some(api) = SignatureApi::load() else { return false };
    // SAFETY: the verification has succeeded, and its state is closed afterwards.
    verify(path, Some(file), |error, state| error == 0 && unsafe { api.is_makers(state) }).unwrap_or(false)
}

/// Calls WinVerifyTrust for a file, without a dialog and without the network. Passes its result (0
/// = trusted) and the verification's state to `judge` and returns the judgement; `None` if the
/// function does not exist. If `file` is given, the open file is read, not the one that the name
/// now leads to.
pub(crate) fn verify<T>(path: &Path, file: Option<&File>, judge: impl FnOnce(u32, HANDLE) -> T) -> Option<T> {
    let verify = system::system_dll(c"wintrust.dll", c"WinVerifyTrust")?;
    // SAFETY: this is the documented signature of WinVerifyTrust.
    let verify = unsafe { transmute::<Procedure, Verify>(verify) };
    let name = system::wide(path.as_os_str());
    let mut subject = WINTRUST_FILE_INFO {
        cbStruct: size_of::<WINTRUST_FILE_INFO>() as u32,
        pcwszFilePath: name.as_ptr(),
        hFile: file.map_or(ptr::null_mut(), |file| file.as_raw_handle()),
        ..WINTRUST_FILE_INFO::default()
    };
    let mut data = WINTRUST_DATA {
        cbStruct: size_of::<WINTRUST_DATA>() as u32,
        dwUIChoice: WTD_UI_NONE,
        fdwRevocationChecks: WTD_REVOKE_NONE,
        dwUnionChoice: WTD_CHOICE_FILE,
        Anonymous: WINTRUST_DATA_0 { pFile: &mut subject },
        dwStateAction: WTD_STATEACTION_VERIFY,
        dwProvFlags: WTD_CACHE_ONLY_URL_RETRIEVAL,
        ..WINTRUST_DATA::default()
    };
    let mut action = WINTRUST_ACTION_GENERIC_VERIFY_V2;
    // SAFETY: the structs say their sizes and outlive both calls.
    let error = unsafe { verify(ptr::null_mut(), &mut action, &mut data) } as u32;
    let judged = judge(error, data.hWVTStateData);
    data.dwStateAction = WTD_STATEACTION_CLOSE;
    // SAFETY: as above; this frees what the first call left in them, after its last use.
    unsafe { verify(ptr::null_mut(), &mut action, &mut data) };
    Some(judged)
}
