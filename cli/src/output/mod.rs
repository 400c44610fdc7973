//! One module per output format.
//!
//! Every writer gets a finished, symbolized [`Profile`](crate::profile::Profile) and then its runs, thread by thread in time
//! order, and gives bytes that depend on nothing else. See the `Writer` trait.

use crate::profile::{Batch, Profile};

/// One output in the making.
pub trait Writer {
    /// Writes what precedes the samples.
    fn begin(&mut self, profile: &Profile) -> anyhow::Result<()>;
    /// Takes runs of one thread; threads come one after the other, each in time order.
    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> anyhow::Result<()>;
    /// Writes the rest and flushes.
    fn finish(&mut self, profile: &Profile) -> anyhow::Result<()>;
}
