//! The end of the user's session, in a copy of inject that `--detach` left behind. It has no
//! console, so that the system reports a logoff or a shutdown to its windows only: a hidden one, on
//! a thread of its own, receives WM_QUERYENDSESSION and WM_ENDSESSION.
//!
//! user32 is loaded here and nowhere else: a console program that has loaded it gets no
//! CTRL_LOGOFF_EVENT.

use crate::windows::console;
use crate::windows::system::{self, Procedure};
use std::ffi::CStr;
use std::ptr;
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;
use windows_sys::Win32::Foundation::{HINSTANCE, HWND, LPARAM, LRESULT, WPARAM};
use windows_sys::Win32::UI::WindowsAndMessaging::{HMENU, MSG, WM_ENDSESSION, WM_QUERYENDSESSION, WNDCLASSW};
use windows_sys::core::{BOOL, w};

/// Class of the hidden window.
const CLASS: *const u16 = w!("stk-inject-session");
/// How long the window's thread waits for the main thread to complete the recording and to end
/// inject. The system may end inject sooner.
const COMPLETION: Duration = Duration::from_secs(60);

type RegisterClass = unsafe extern "system" fn(*const WNDCLASSW) -> u16;
type CreateWindow = unsafe extern "system" fn(
    u32,
    *const u16,
    *const u16,
    u32,
    i32,
    i32,
    i32,
    i32,
    HWND,
    HMENU,
    HINSTANCE,
    *const std::ffi::c_void,
) -> HWND;
type GetMessage = unsafe extern "system" fn(*mut MSG, HWND, u32, u32) -> BOOL;
type DispatchMessage = unsafe extern "system" fn(*const MSG) -> LRESULT;
type DefaultProcedure = unsafe extern "system" fn(HWND, u32, WPARAM, LPARAM) -> LRESULT;
type CreateReason = unsafe extern "system" fn(HWND, *const u16) -> BOOL;
type DestroyReason = unsafe extern "system" fn(HWND) -> BOOL;

/// What inject uses of user32.
struct User32 {
    register_class: RegisterClass,
    create_window: CreateWindow,
    get_message: GetMessage,
    dispatch_message: DispatchMessage,
    default_procedure: DefaultProcedure,
    create_reason: CreateReason,
    destroy_reason: DestroyReason,
}

static USER32: OnceLock<User32> = OnceLock::new();

/// From now on the end of the session sets the event of [`console::catch`]. Returns when the window
/// exists; false if there is none, as in a session without a desktop.
pub(crate) fn watch() -> bool {
    let (created, exists) = mpsc::channel();
    let work = move || {
        let user32 = load();
        let window = user32.and_then(|user32| user32.hidden_window());
        let _ = created.send(window.is_some());
        if let (Some(user32), Some(_)) = (user32, window) {
            user32.dispatch();
        }
    };
    let thread = std::thread::Builder::new().name("session".to_owned()).spawn(work);
    thread.is_ok() && exists.recv().unwrap_or(false)
}

fn load() -> Option<&'static User32> {
    let function = |name: &CStr| system::system_dll(c"user32.dll", name);
    // SAFETY: the types are the documented signatures of these functions.
    let user32 = unsafe {
        User32 {
            register_class: std::mem::transmute::<Procedure, RegisterClass>(function(c"RegisterClassW")?),
            create_window: std::mem::transmute::<Procedure, CreateWindow>(function(c"CreateWindowExW")?),
            get_message: std::mem::transmute::<Procedure, GetMessage>(function(c"GetMessageW")?),
            dispatch_message: std::mem::transmute::<Procedure, DispatchMessage>(function(
                c"DispatchMessageW",
            )?),
            default_procedure: std::mem::transmute::<Procedure, DefaultProcedure>(function(
                c"DefWindowProcW",
            )?),
            create_reason: std::mem::transmute::<Procedure, CreateReason>(function(
                c"ShutdownBlockReasonCreate",
            )?),
            destroy_reason: std::mem::transmute::<Procedure, DestroyReason>(function(
                c"ShutdownBlockReasonDestroy",
            )?),
        }
    };
    Some(USER32.get_or_init(|| user32))
}

impl User32 {
    /// A window of the calling thread that is never shown. A message-only window would not receive
    /// the end of the session.
    fn hidden_window(&self) -> Option<HWND> {
        let class = WNDCLASSW { lpfnWndProc: Some(procedure), lpszClassName: CLASS, ..Default::default() };
        // SAFETY: the class is whole and its name constant; no other pointer is passed.
        let window = unsafe {
            (self.register_class)(&class);
            let (none, module) = (ptr::null_mut(), ptr::null_mut());
            (self.create_window)(0, CLASS, CLASS, 0, 0, 0, 0, 0, none, none, module, ptr::null())
        };
        (!window.is_null()).then_some(window)
    }

    /// Dispatches the calling thread's messages until the process ends.
    fn dispatch(&self) {
        let mut message = MSG::default();
        // SAFETY: the message has room; each is one that the system filled.
        unsafe {
            while (self.get_message)(&mut message, ptr::null_mut(), 0, 0) > 0 {
                (self.dispatch_message)(&message);
            }
        }
    }
}

unsafe extern "system" fn procedure(window: HWND, message: u32, wparam: WPARAM, lparam: LPARAM) -> LRESULT {
    let Some(user32) = USER32.get() else { return 0 };
    match message {
        WM_QUERYENDSESSION => {
            // SAFETY: the window is this thread's; the text is constant.
            unsafe { (user32.create_reason)(window, w!("stk completes the recording")) };
            1
        }
        WM_ENDSESSION if wparam == 0 => {
            // Somebody cancelled it: the recording continues.
            // SAFETY: the window is this thread's.
            unsafe { (user32.destroy_reason)(window) };
            0
        }
        WM_ENDSESSION => {
            console::end_session();
            // The system may end this process once this returns.
            std::thread::sleep(COMPLETION);
            0
        }
        // SAFETY: the arguments are those of the call.
        _ => unsafe { (user32.default_procedure)(window, message, wparam, lparam) },
    }
}
