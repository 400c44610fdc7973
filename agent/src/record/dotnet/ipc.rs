//! Messages of the diagnostics pipe (dotnet/diagnostics,
//! documentation/design-docs/ipc-protocol.md).
//!
//! Each message is a header of 20 bytes (magic, size of the whole message as u16, command set,
//! command, reserved) and a payload. The stream of a tracing session follows the reply to the
//! request that started it, on the same connection.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use stk_schema::bytes::u32_at;

/// Bytes of a header.
pub(crate) const HEADER: usize = 20;
const MAGIC: &[u8; 14] = b"DOTNET_IPC_V1\0";

const SET_EVENT_PIPE: u8 = 2;
const SET_PROCESS: u8 = 4;
const SET_SERVER: u8 = 0xff;

/// Megabytes that the runtime may buffer for a session.
const BUFFER_MB: u32 = 64;
/// NetTrace, as opposed to the older NetPerf.
const FORMAT_NETTRACE: u32 = 1;
/// What the runtime lists at the end of a session (Microsoft-Windows-DotNETRuntimeRundown): Loader
/// 0x8, JIT 0x10, NGEN 0x20, EndEnumeration 0x100, JittedMethodILToNativeMap 0x20000.
/// StartEnumeration 0x40 would list everything a second time.
const RUNDOWN: u64 = 0x8 | 0x10 | 0x20 | 0x100 | 0x20000;
/// A provider that does not exist, with no keywords. Enabling the runtime's own provider would make
/// a .NET 10 process compile some 1,200 methods for the session.
const PROVIDER: &str = "stk";

/// The names of a process's pipe: the usual one, and that of a process in an AppContainer, whose
/// pipes are in a folder of its own.
pub(crate) fn pipe_names(pid: u32) -> [String; 2] {
    ["", "LOCAL\\"].map(|folder| format!(r"\\.\pipe\{folder}dotnet-diagnostic-{pid}"))
}

/// A request to the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Starts a session that lists, at its end, the events of `RUNDOWN` (.NET 9 and later).
    CollectTracing4,
    /// Starts a session that lists, at its end, all events of a rundown (.NET Core 3.0 and later).
    CollectTracing2,
    /// Ends a session: the runtime sends the rundown, then ends the stream.
    StopTracing {
        /// The id from the reply to the request that started the session.
        session: u64,
    },
    /// Asks for the process's names and the runtime's version (.NET 6 and later).
    ProcessInfo2,
}

impl Request {
    /// The request's bytes.
    pub(crate) fn message(&self) -> Vec<u8> {
        let (set, command) = match self {
            Request::CollectTracing4 => (SET_EVENT_PIPE, 5),
            Request::CollectTracing2 => (SET_EVENT_PIPE, 3),
            Request::StopTracing { .. } => (SET_EVENT_PIPE, 1),
            Request::ProcessInfo2 => (SET_PROCESS, 4),
        };
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&[0, 0, set, command, 0, 0]);
        match self {
            Request::CollectTracing4 | Request::CollectTracing2 => {
                out.extend_from_slice(&BUFFER_MB.to_le_bytes());
                out.extend_from_slice(&FORMAT_NETTRACE.to_le_bytes());
                if *self == Request::CollectTracing4 {
                    out.extend_from_slice(&RUNDOWN.to_le_bytes());
                    out.push(0); // no stacks
                } else {
                    out.push(1); // rundown
                }
                out.extend_from_slice(&1u32.to_le_bytes());
                out.extend_from_slice(&0u64.to_le_bytes());
                out.extend_from_slice(&0u32.to_le_bytes());
                text(&mut out, PROVIDER);
                text(&mut out, "");
            }
            Request::StopTracing { session } => out.extend_from_slice(&session.to_le_bytes()),
            Request::ProcessInfo2 => {}
        }
        let size = out.len() as u16;
        out[14..16].copy_from_slice(&size.to_le_bytes());
        out
    }
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The runtime's error code; see [`UNKNOWN_COMMAND`].
    Code(u32),
    /// The reply is no message of this protocol.
    Garbled,
}

/// The error code for a command that this version of the runtime does not have.
pub(crate) const UNKNOWN_COMMAND: u32 = 0x8013_1385;

/// Length of the payload that follows this header.
pub(crate) fn payload_len(header: &[u8; HEADER]) -> Result<usize, Refusal> {
    let size = usize::from(u16::from_le_bytes([header[14], header[15]]));
    if header[..14] != *MAGIC || header[16] != SET_SERVER || size < HEADER {
        return Err(Refusal::Garbled);
    }
    Ok(size - HEADER)
}

/// The payload of a reply, unless it is an error.
pub(crate) fn reply<'a>(header: &[u8; HEADER], payload: &'a [u8]) -> Result<&'a [u8], Refusal> {
    match header[17] {
        0 => Ok(payload),
        0xff => Err(Refusal::Code(u32_at(payload, 0).ok_or(Refusal::Garbled)?)),
        _ => Err(Refusal::Garbled),
    }
}

/// The session id in the reply to a request that started a session.
pub(crate) fn session(payload: &[u8]) -> Result<u64, Refusal> {
    super::pointer_at(payload, 0, 8).ok_or(Refusal::Garbled)
}

/// The runtime's version in the reply to [`Request::ProcessInfo2`]: the last of its texts (process
/// id, runtime cookie, then command line, operating system, architecture, entry assembly, version).
pub(crate) fn version(payload: &[u8]) -> Option<Vec<u8>> {
    let mut rest = payload.get(8 + 16..)?;
    let mut last = Vec::new();
    for _ in 0..5 {
        let units = u32_at(rest, 0)? as usize;
        let bytes = rest.get(4..units.checked_mul(2)?.checked_add(4)?)?;
        let units = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        last = char::decode_utf16(units.take_while(|&unit| unit != 0))
            .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect::<alloc::string::String>()
            .into_bytes();
        rest = rest.get(4 + bytes.len()..)?;
    }
    Some(last)
}

/// A text: count of UTF-16 units with the terminator, then the units.
fn text(out: &mut Vec<u8>, text: &str) {
    let units = text.encode_utf16().count() as u32 + 1;
    out.extend_from_slice(&units.to_le_bytes());
    for unit in text.encode_utf16().chain([0]) {
        out.extend_from_slice(&unit.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(message: &[u8]) -> [u8; HEADER] {
        message[..HEADER].try_into().unwrap()
    }

    #[test]
    fn a_pipe_in_an_app_container_has_a_name_of_its_own() {
        let [usual, isolated] = pipe_names(77);
        assert_eq!(usual, r"\\.\pipe\dotnet-diagnostic-77");
        assert_eq!(isolated, r"\\.\pipe\LOCAL\dotnet-diagnostic-77");
    }

    /// The protocol's document, "StopTracing": 28 bytes, command 0x0201.
    #[test]
    fn a_request_is_laid_out_as_the_protocol_says() {
        let message = Request::StopTracing { session: 0x0102_0304_0506_0708 }.message();
        assert_eq!(message[..14], *b"DOTNET_IPC_V1\0");
        assert_eq!(message[14..20], [28, 0, 2, 1, 0, 0]);
        assert_eq!(message[20..], [8, 7, 6, 5, 4, 3, 2, 1]);
        let message = Request::CollectTracing2.message();
        assert_eq!(usize::from(u16::from_le_bytes([message[14], message[15]])), message.len());
        assert_eq!(message[16..18], [2, 3]);
        // buffer, format, rundown, one provider: keywords, level, name, filter
        assert_eq!(message[20..33], [64, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0]);
        assert_eq!(message[33..45], [0; 12]);
        assert_eq!(message[45..], [4, 0, 0, 0, b's', 0, b't', 0, b'k', 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    }

    /// Replies of CoreCLR 3.1.2 and 10.0.9, as received.
    #[test]
    fn replies_of_real_runtimes() {
        let unknown = b"DOTNET_IPC_V1\0\x18\0\xff\xff\0\0\x85\x13\x13\x80";
        assert_eq!(payload_len(&header(unknown)), Ok(4));
        assert_eq!(reply(&header(unknown), &unknown[20..]), Err(Refusal::Code(UNKNOWN_COMMAND)));
        let started = b"DOTNET_IPC_V1\0\x1c\0\xff\0\0\0\x70\x8b\x04\x01\0\0\0\0";
        assert_eq!(payload_len(&header(started)), Ok(8));
        assert_eq!(session(reply(&header(started), &started[20..]).unwrap()), Ok(0x0104_8b70));
    }

    #[test]
    fn the_version_is_the_last_text() {
        let mut payload = alloc::vec![7; 24];
        for part in ["mixed.exe 12", "Windows", "x64", "mixed", "10.0.9"] {
            text(&mut payload, part);
        }
        assert_eq!(version(&payload).as_deref(), Some(&b"10.0.9"[..]));
        for len in 0..payload.len() {
            assert_eq!(version(&payload[..len]), None, "cut at {len}");
        }
    }

    #[test]
    fn invalid_replies_are_refused() {
        assert_eq!(payload_len(&[0; HEADER]), Err(Refusal::Garbled));
        let mut short = header(b"DOTNET_IPC_V1\0\x13\0\xff\0\0\0");
        assert_eq!(payload_len(&short), Err(Refusal::Garbled));
        short[14] = 20;
        assert_eq!(payload_len(&short), Ok(0));
        assert_eq!(session(&[]), Err(Refusal::Garbled));
        short[17] = 0xff;
        assert_eq!(reply(&short, &[]), Err(Refusal::Garbled));
    }
}
