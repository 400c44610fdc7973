//! Tests across crates: oracles, golden outputs, end-to-end tests under Wine.
//!
//! Without the feature `analysis` the crate has only the code that end-to-end tests of the recorder
//! need. These then build in a minute, also for Windows.
//!
//! * [`arrows`]: which module of a crate uses which.
//! * `microsoft`: Microsoft's dbghelp.dll and msdia140.dll under Wine.
//! * `oracle`: emulator truth for the unwinders.
//! * [`wine`]: Windows programs, under Wine or natively, and inject.exe recording them.
//! * `peers`: other readers' answers from a PDB, judged by its records.
//! * [`documents`]: the documents' files, and command lines in them.
//! * [`chrome`]: stacks over time in a Chrome trace.
//! * [`hostile`]: traces that an attacker would write, and limits to run stk under.
//! * [`managed_lines`]: lines of examples/mixed by its compiler and its source.
//! * [`pdb_file`]: PDBs written by hand.
//! * [`symbol_bombs`]: small symbol files that are costly to read.
//! * [`synth`]: traces built event by event, taken apart, damaged and changed.
//! * [`traces`]: images with unwind data, and threads with stacks that can be walked.
//! * [`pe`]: imports, exports and resources of a built DLL.
//! * [`wrong`]: files of stk with one change: tables, traces that are followed, JSON.
//! * [`weights`]: stk's profile beside that of Linux' own sampler.
//! * [`recorded`]: a trace as the format's own reader returns it, without stk's analysis.
//! * [`schema`]: whether JSON follows the schemas in schema/.
//! * [`sha256`]: hashes, without a program for them.
//! * [`stk`]: the host's `stk` and its outputs.

pub mod arrows;
pub mod chrome;
pub mod cpu;
pub mod documents;
pub mod hostile;
pub mod managed_lines;
#[cfg(feature = "judges")]
pub mod microsoft;
#[cfg(feature = "judges")]
pub mod oracle;
pub mod pdb_file;
pub mod pe;
#[cfg(feature = "analysis")]
pub mod peers;
pub mod recorded;
pub mod schema;
pub mod sha256;
pub mod stk;
pub mod symbol_bombs;
pub mod synth;
pub mod traces;
pub mod weights;
pub mod wine;
pub mod wrong;
