//! Why a symbol server delivered no file.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::identity::Identity;
use super::trust::redirect::RedirectError;

/// What is wrong with a server's answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WrongFile {
    /// It is of another build.
    #[error("sent another build ({found} instead of {wanted})")]
    OtherBuild {
        /// The identity of the file that was sent.
        found: Identity,
        /// The requested identity.
        wanted: Identity,
    },
    /// It is not a file of this kind: what is wrong with it.
    #[error("what came {0}")]
    Unreadable(String),
    /// Its `file.ptr` refers to another server or path.
    #[error("file.ptr points to {0:?}, which is outside the server")]
    Pointer(String),
    /// It cannot be unpacked.
    #[error("the packed file {0}")]
    Packed(io::Error),
}

/// Why a server delivered no file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// It has no such file.
    #[error("{0} has no such file")]
    NotFound(String),
    /// A recent query found no such file.
    #[error("{0} had no such file when it was last asked (clear with stk symbols cache --clear)")]
    KnownMissing(String),
    /// It requires credentials, which are never sent.
    #[error("{url} refuses access (HTTP {status})")]
    Denied {
        /// The requested address.
        url: String,
        status: u16,
    },
    /// It answers with an error.
    #[error("{url} answers with HTTP {status}: try again later")]
    Status {
        /// The requested address.
        url: String,
        status: u16,
    },
    /// The connection fails or stalls.
    #[error("{url}: {error}: check the address, the proxy settings and the connection")]
    Connection {
        /// The requested address.
        url: String,
        error: String,
    },
    /// Its answer is too slow.
    #[error("{url}: only {got} bytes came in {seconds:.1} s: the server is given up as too slow")]
    TooSlow {
        url: String,
        /// Bytes received in the last period.
        got: u64,
        /// Length of that period.
        seconds: f64,
    },
    /// It redirects to an address that is not followed.
    #[error("{url}: {reason}: that is not followed")]
    Redirect {
        url: String,
        /// The address, and why it is not followed.
        reason: RedirectError,
    },
    /// The answer is shorter than announced.
    #[error("{url}: the answer ended after {got} of {announced} bytes: try again")]
    Truncated {
        url: String,
        /// Bytes received.
        got: u64,
        /// Bytes announced.
        announced: u64,
    },
    /// The file is larger than the limit.
    #[error("{url}: the file is larger than {limit} bytes: raise --max-download")]
    TooLarge {
        /// The requested address.
        url: String,
        /// The limit, in bytes.
        limit: u64,
    },
    /// It sent something else than requested.
    #[error("{url}: {reason}: please inform the server's owner")]
    Wrong {
        url: String,
        /// What is wrong with it.
        reason: WrongFile,
    },
    /// The cache cannot be written.
    #[error("{path}: {error}: name another folder with --symbol-cache")]
    Cache {
        /// File in the cache.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

impl ServerError {
    /// Whether the error is temporary, so that the same request may succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            ServerError::Status { status, .. } => *status >= 500 || matches!(status, 408 | 425 | 429),
            ServerError::Connection { .. } | ServerError::Truncated { .. } => true,
            _ => false,
        }
    }

    /// Whether the server simply has no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, ServerError::NotFound(_) | ServerError::KnownMissing(_))
    }
}
