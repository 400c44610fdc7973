//! The processes of a profile: the one of its trace, or those of several traces that were joined.

use super::Profile;
use stk_base::model::ImageId;
use stk_schema::Arch;

/// A process of a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessInfo {
    /// Its id, as viewers get it. Where two processes had the same one, the later one has another.
    pub pid: u32,
    /// Executable's file name; `pid N` if unknown.
    pub name: String,
    /// Architecture of its code.
    pub arch: Arch,
}

/// Which process the things of a joined profile belong to; empty in the profile of one trace.
#[derive(Default, Debug)]
pub struct Processes {
    /// In order of their first trace.
    pub(super) list: Vec<ProcessInfo>,
    /// By thread, an index in `list`.
    pub(super) threads: Vec<u32>,
    /// By module instance.
    pub(super) modules: Vec<u32>,
    /// By mark.
    pub(super) marks: Vec<u32>,
    /// By gap.
    pub(super) gaps: Vec<u32>,
    /// By image: the process that had it first.
    pub(super) images: Vec<u32>,
}

impl Profile {
    /// Its processes; at least one.
    pub fn process_list(&self) -> Vec<ProcessInfo> {
        if self.processes.list.is_empty() {
            let trace = &self.trace;
            return vec![ProcessInfo { pid: trace.pid, name: trace.process.clone(), arch: trace.arch }];
        }
        self.processes.list.clone()
    }

    /// The process of a thread: an index in [`process_list`](Profile::process_list).
    pub fn process_of_thread(&self, thread: u32) -> u32 {
        self.processes.threads.get(thread as usize).copied().unwrap_or(0)
    }

    /// The process of a module instance, by its index.
    pub fn process_of_module(&self, module: usize) -> u32 {
        self.processes.modules.get(module).copied().unwrap_or(0)
    }

    /// The process of a mark, by its index.
    pub fn process_of_mark(&self, mark: usize) -> u32 {
        self.processes.marks.get(mark).copied().unwrap_or(0)
    }

    /// The process of a gap, by its index.
    pub fn process_of_gap(&self, gap: usize) -> u32 {
        self.processes.gaps.get(gap).copied().unwrap_or(0)
    }

    /// The id of a thread's process.
    pub fn pid_of_thread(&self, thread: u32) -> u32 {
        let process = self.process_of_thread(thread) as usize;
        self.processes.list.get(process).map_or(self.trace.pid, |process| process.pid)
    }

    /// The architecture of an image: that of the process that had it first.
    pub fn arch_of_image(&self, image: ImageId) -> Arch {
        let process = self.processes.images.get(image.0 as usize).copied().unwrap_or(0);
        self.processes.list.get(process as usize).map_or(self.trace.arch, |process| process.arch)
    }

    /// A thread's label where nothing else names its process.
    pub fn thread_label(&self, thread: u32) -> String {
        let label = self.threads[thread as usize].label();
        match self.processes.list.get(self.process_of_thread(thread) as usize) {
            Some(process) => format!("{} {}: {label}", process.name, process.pid),
            None => label,
        }
    }

    /// Its processes in words, for titles: `app.exe (pid 4404)`.
    pub fn title(&self) -> String {
        const NAMED: usize = 3;
        let all = self.process_list();
        let named = all.iter().take(NAMED).map(|process| format!("{} (pid {})", process.name, process.pid));
        let mut title = named.collect::<Vec<_>>().join(", ");
        if all.len() > NAMED {
            title.push_str(&format!(" and {} more", all.len() - NAMED));
        }
        title
    }
}
