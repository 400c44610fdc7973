//! Whom to distrust: names and paths that traces, stores and servers give, folders that others may
//! write to, and servers.
//!
//! ```text
//! places      names and paths from others that this machine may open
//! owner       whether others may write to a folder (Windows)
//! search_dir  a folder to search, and how far it is trusted
//! pointer     which files a store's file.ptr may name
//! redirect    where a server may redirect to
//! pace        how slow a server may be
//! ```

#[cfg(windows)]
pub(super) mod owner;
pub(super) mod pace;
pub(super) mod places;
pub(super) mod pointer;
pub(super) mod redirect;
pub(super) mod search_dir;
