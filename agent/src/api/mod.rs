//! The agent's functions for programs, in Rust: a program captures its own stacks, walks them,
//! leaves marks and names its threads. Feature `api`; without the feature `recorder` the crate has
//! nothing else.
//!
//! **What the program provides**: agent.dll of its own width, which somebody has loaded
//! (inject.exe) or [`Api::load`] loads. **What this solves**: it finds the functions, keeps the DLL
//! loaded as long as the [`Api`] lives, and does nothing where there is no agent, so a program
//! calls it without asking first. On systems other than Windows there is never one.
//!
//! Each function works on the calling thread alone; nothing is suspended, and nothing needs a
//! recording but [`Api::capture`] and [`Api::mark`], which say so. All may be called from any
//! thread at any time. While an [`Api`] lives, or after one of its functions was called, the agent
//! refuses to be unloaded by inject.
//!
//! ```no_run
//! let api = agent::Api::find();
//! api.thread_name("import");
//! api.mark("import begins");
//! api.capture(7); // the tag of `stk dump --tag 7`
//! let mut pcs = [0; 32];
//! if let Some(frames) = api.backtrace(&mut pcs, 0) {
//!     // pcs[..frames] are return addresses, the innermost first.
//! }
//! ```

#[cfg(windows)]
#[path = "windows.rs"]
mod system;
#[cfg(not(windows))]
#[path = "nowhere.rs"]
mod system;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "or it is not known whether the trace has it"]
pub enum Outcome {
    /// It is done; a capture or a mark goes into the trace.
    Done,
    /// There is no agent.
    NoAgent,
    /// The agent does not record now.
    NotRecording,
    /// The recorder had no room for it, or the system cannot do it.
    Dropped,
    /// The agent did not take the arguments. It is of another version.
    Refused,
}

impl Outcome {
    /// Of the result of one of the agent's functions.
    #[cfg_attr(not(windows), allow(dead_code, reason = "there is never an agent"))]
    const fn of(result: u32) -> Outcome {
        match result {
            0 => Outcome::Done,
            1 => Outcome::NotRecording,
            2 => Outcome::Dropped,
            _ => Outcome::Refused,
        }
    }
}

/// The agent's functions. The agent stays loaded until this is dropped.
#[derive(Debug)]
pub struct Api(Option<system::Loaded>);

impl Api {
    /// The agent at `path`, which is loaded if it is not. Functions of a file that cannot be
    /// loaded, or that is no agent, do nothing.
    ///
    /// A DLL's code runs as it is loaded: a program that others may start gives an absolute path.
    pub fn load(path: &str) -> Api {
        Api(system::Loaded::load(path))
    }

    /// The agent that is loaded already, such as by inject: agent.dll, or agent32.dll.
    pub fn find() -> Api {
        Api(system::Loaded::find())
    }

    /// Whether there is an agent.
    pub fn is_loaded(&self) -> bool {
        self.0.is_some()
    }

    /// Records the calling thread's stack at this moment, with a tag for `stk dump --tag`.
    pub fn capture(&self, tag: u64) -> Outcome {
        self.0.as_ref().map_or(Outcome::NoAgent, |agent| Outcome::of(agent.capture(tag)))
    }

    /// Fills `pcs` with addresses: one in the caller first, then the return addresses above it; the
    /// first `skip` of them are left out. Returns how many; `None` without an agent. Needs no
    /// recording. On x86 it follows frame pointers, and ends at a function without one.
    #[inline(never)] // This function's own frame is always there, and is left out.
    pub fn backtrace(&self, pcs: &mut [usize], skip: u32) -> Option<usize> {
        let agent = self.0.as_ref()?;
        Some(agent.backtrace(pcs, skip.saturating_add(1)))
    }

    /// Leaves a mark in the trace, with this moment and the calling thread. 250 bytes of the text
    /// are kept, up to the first zero byte.
    pub fn mark(&self, text: &str) -> Outcome {
        self.0.as_ref().map_or(Outcome::NoAgent, |agent| Outcome::of(agent.mark(text)))
    }

    /// Names the calling thread, as the system's SetThreadDescription does, for this and later
    /// recordings and for debuggers.
    pub fn thread_name(&self, text: &str) -> Outcome {
        self.0.as_ref().map_or(Outcome::NoAgent, |agent| Outcome::of(agent.thread_name(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_agent_every_call_does_nothing_and_says_so() {
        for api in [Api::find(), Api::load("no such agent.dll")] {
            assert!(!api.is_loaded());
            assert_eq!(api.capture(1), Outcome::NoAgent);
            assert_eq!(api.mark("text"), Outcome::NoAgent);
            assert_eq!(api.thread_name("text"), Outcome::NoAgent);
            let mut pcs = [5; 4];
            assert_eq!((api.backtrace(&mut pcs, 0), pcs), (None, [5; 4]));
        }
    }

    #[test]
    fn results_are_those_of_the_c_header() {
        let outcomes = [0, 1, 2, 3, 99].map(Outcome::of);
        let wanted =
            [Outcome::Done, Outcome::NotRecording, Outcome::Dropped, Outcome::Refused, Outcome::Refused];
        assert_eq!(outcomes, wanted);
    }
}
