//! A made-up process: memory that is written field by field in the descriptor's layout, and managed
//! code that is unwound by a table.

use std::collections::BTreeMap;

use stk_schema::Arch;

use super::{Code, Context, Contract, ContractError, Descriptor, Memory};

/// Memory whose written bytes are known. All other bytes are unknown.
#[derive(Default)]
pub(super) struct Mock {
    bytes: BTreeMap<u64, u8>,
}

impl Mock {
    pub(super) fn put(&mut self, address: u64, bytes: &[u8]) {
        self.bytes.extend(bytes.iter().enumerate().map(|(n, byte)| (address.wrapping_add(n as u64), *byte)));
    }
}

impl Memory for Mock {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        into.iter_mut().enumerate().all(|(n, to)| {
            let from = address.checked_add(n as u64).and_then(|at| self.bytes.get(&at));
            from.map(|byte| *to = *byte).is_some()
        })
    }
}

/// A made-up process: its descriptor and its memory.
pub(super) struct Process {
    pub contract: Contract,
    pub memory: Mock,
}

impl Process {
    pub(super) fn new(arch: Arch, types: &str) -> Process {
        let name = match arch {
            Arch::X64 => "x64",
            Arch::Arm64 => "arm64",
            Arch::X86 => "x86",
        };
        let kinds: Vec<String> = super::ExplicitKind::ALL
            .iter()
            .enumerate()
            .map(|(n, kind)| format!("\"{}Identifier\":[\"{:#x}\",\"nuint\"]", kind.as_str(), n + 1))
            .collect();
        let json = format!(
            r#"{{"version":0,"baseline":"empty","types":{types},
                "globals":{{"Architecture":["{name}","string"],"MethodDescTokenRemainderBitCount":["0xc","uint8"],
                            "MethodDescAlignment":["0x8","uint64"],{}}},
                "contracts":{{"StackWalk":"c1","Thread":1}}}}"#,
            kinds.join(",")
        );
        let descriptor = Descriptor::parse(arch, json.as_bytes(), &[]).expect("the test's descriptor");
        Process { contract: Contract::new(descriptor), memory: Mock::default() }
    }

    fn pointer_size(&self) -> usize {
        self.contract.descriptor().pointer_size() as usize
    }

    pub(super) fn pointer(&mut self, address: u64, value: u64) {
        let size = self.pointer_size();
        self.memory.put(address, &value.to_le_bytes()[..size]);
    }

    /// Writes a pointer-sized field.
    pub(super) fn field(&mut self, base: u64, type_name: &str, field: &str, value: u64) {
        let offset = self.contract.descriptor().offset(type_name, field).expect("a field of the descriptor");
        self.pointer(base + offset, value);
    }

    /// Writes a Frame's identifier and link. If `next` is 0, the chain ends.
    pub(super) fn frame(&mut self, address: u64, kind: super::ExplicitKind, next: u64) {
        let identifier =
            super::ExplicitKind::ALL.iter().position(|known| *known == kind).expect("a kind") as u64 + 1;
        self.pointer(address, identifier);
        let end = if self.pointer_size() == 4 { u64::from(u32::MAX) } else { u64::MAX };
        self.field(address, "Frame", "Next", if next == 0 { end } else { next });
    }

    /// Writes a CONTEXT with these registers and flags.
    pub(super) fn context(&mut self, address: u64, flags: u32, registers: &[(&str, u64)]) {
        let arch = self.contract.descriptor().arch();
        let context = context(arch, registers);
        let mut bytes = context.bytes().to_vec();
        let at = if arch == Arch::X64 { 0x30 } else { 0 };
        bytes[at..at + 4].copy_from_slice(&flags.to_le_bytes());
        self.memory.put(address, &bytes);
    }
}

pub(super) fn context(arch: Arch, registers: &[(&str, u64)]) -> Context {
    let mut context = Context::new(arch);
    for (name, value) in registers {
        assert!(context.set_register(name, *value), "{name}");
    }
    context
}

/// Managed code: address ranges, and the caller's instruction pointer and stack pointer for those
/// of a frame.
#[derive(Default)]
pub(super) struct MockCode {
    pub managed: Vec<std::ops::Range<u64>>,
    pub callers: BTreeMap<(u64, u64), (u64, u64)>,
}

impl Code for MockCode {
    fn is_managed(&self, ip: u64) -> bool {
        self.managed.iter().any(|range| range.contains(&ip))
    }

    fn unwind(&self, context: &mut Context) -> Result<(), ContractError> {
        let from = (context.ip(), context.sp());
        let (ip, sp) = self
            .callers
            .get(&from)
            .ok_or(ContractError::NotUnwound { ip: from.0, why: "the test knows no caller".into() })?;
        context.set_ip(*ip);
        context.set_sp(*sp);
        Ok(())
    }
}
