//! Gets one list of a runtime's methods through the diagnostics pipe.

use alloc::vec;
use alloc::vec::Vec;

use windows_sys::Win32::Foundation::{ERROR_FILE_NOT_FOUND, ERROR_PIPE_BUSY};
use windows_sys::Win32::System::Threading::Sleep;

use super::answers::AskError;
use super::client::{BUSY_MS, LAST_MS, RuntimesClient, STALLED_MS};
use super::pipe::{Fault, Pipe};
use super::recorder::{PIECE, RuntimesRecorder};
use crate::record::dotnet::ipc::{self, HEADER, Refusal, Request};
use crate::windows::system::api::ticks;

/// Milliseconds between checks of the deadlines.
const STEP_MS: u32 = 100;

impl RuntimesClient<'_> {
    /// Lets the runtime list its methods.
    pub(super) fn list(&mut self) -> Result<(), AskError> {
        if !self.version_asked {
            let mut pipe = self.connect(true)?;
            self.version_asked = true;
            // Runtimes before .NET 6 refuse this: keep the version in the module's resources.
            if let Ok(payload) = self.request(&mut pipe, Request::ProcessInfo2) {
                self.version = ipc::version(&payload);
            }
        }
        let (mut stream, session) = self.start()?;
        self.state.enter(RuntimesRecorder::begin_stream);
        let result = self.receive(&mut stream, session);
        self.state.enter(|state| state.end_stream(result));
        result
    }

    /// Starts a session with the newest command that the runtime supports.
    fn start(&mut self) -> Result<(Pipe, u64), AskError> {
        if !self.old {
            let mut pipe = self.connect(true)?;
            match self.request(&mut pipe, Request::CollectTracing4) {
                Ok(payload) => return Ok((pipe, ipc::session(&payload)?)),
                Err(AskError::Refused(Refusal::Code(ipc::UNKNOWN_COMMAND))) => self.old = true,
                Err(other) => return Err(other),
            }
        }
        let mut pipe = self.connect(true)?;
        let payload = self.request(&mut pipe, Request::CollectTracing2)?;
        Ok((pipe, ipc::session(&payload)?))
    }

    /// Ends the session at once, which makes the runtime list everything, and receives the list.
    /// The reply to the request comes only after the end of the stream.
    fn receive(&mut self, stream: &mut Pipe, session: u64) -> Result<(), AskError> {
        let mut control = self.connect(false)?;
        control.write(&Request::StopTracing { session }.message(), STALLED_MS as u32)?;
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(PIECE, 0);
        let mut moved = ticks();
        let result: Result<(), AskError> = loop {
            match stream.read(&mut buffer, STEP_MS) {
                Ok(0) => break Ok(()),
                Ok(read) => {
                    let bytes = buffer.get(..read).unwrap_or(&[]);
                    self.state.enter(|state| state.received(bytes));
                    moved = ticks();
                }
                Err(Fault::Late) if self.may_wait(moved) => {}
                Err(fault) => break Err(fault.into()),
            }
        };
        self.buffer = buffer;
        result?;
        let mut header = [0; HEADER];
        let _ = control.read_exact(&mut header, STEP_MS);
        Ok(())
    }

    /// Sends a request and returns the payload of its reply.
    fn request(&mut self, pipe: &mut Pipe, request: Request) -> Result<Vec<u8>, AskError> {
        let ms = STALLED_MS.min(LAST_MS) as u32;
        pipe.write(&request.message(), ms)?;
        let mut header = [0; HEADER];
        pipe.read_exact(&mut header, ms)?;
        let mut payload = vec![0; ipc::payload_len(&header)?];
        pipe.read_exact(&mut payload, ms)?;
        ipc::reply(&header, &payload)?;
        Ok(payload)
    }

    /// Opens the pipe by the name that it has.
    fn open_pipe(&self) -> Result<Pipe, Fault> {
        let [usual, isolated] = &self.pipes;
        match Pipe::open(usual) {
            Err(absent @ Fault::System(ERROR_FILE_NOT_FOUND)) => match Pipe::open(isolated) {
                Err(Fault::System(error)) if error != ERROR_PIPE_BUSY => Err(absent),
                opened => opened,
            },
            opened => opened,
        }
    }

    /// Opens the pipe. The runtime serves one client at a time and makes a new pipe for the next
    /// one. So the pipe can be busy or, between two clients, absent. `absent` says whether an
    /// absent pipe means that there is none.
    fn connect(&mut self, absent: bool) -> Result<Pipe, AskError> {
        let since = ticks();
        loop {
            match self.open_pipe() {
                Ok(pipe) => return Ok(pipe),
                Err(Fault::System(ERROR_FILE_NOT_FOUND)) if absent && !self.version_asked => {
                    return Err(AskError::Absent);
                }
                Err(Fault::System(ERROR_FILE_NOT_FOUND | ERROR_PIPE_BUSY)) => {}
                Err(fault) => return Err(fault.into()),
            }
            if !self.may_wait(since) {
                return Err(AskError::Silent);
            }
            // SAFETY: no preconditions.
            unsafe { Sleep(BUSY_MS) };
        }
    }
}
