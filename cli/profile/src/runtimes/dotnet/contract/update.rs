//! How each kind of Frame holds the registers of the managed code that it belongs to: the
//! contract's nine mechanisms.

use stk_schema::Arch;

use super::{Context, ContractError, Descriptor, ExplicitFrame, ExplicitKind, Memory};

/// Reads the fields of the runtime's structures.
pub(super) struct FieldReader<'a, M> {
    pub descriptor: &'a Descriptor,
    pub memory: &'a M,
}

impl<M: Memory> FieldReader<'_, M> {
    /// The address of a field.
    fn field(&self, base: u64, path: FieldPath) -> Result<u64, ContractError> {
        let offset = self.descriptor.offset(path.0, path.1).ok_or(ContractError::NotDescribed(path.2))?;
        Ok(base.wrapping_add(offset))
    }

    /// Reads a pointer-sized field.
    fn pointer(&self, base: u64, path: FieldPath) -> Result<u64, ContractError> {
        self.number(base, path, self.descriptor.pointer_size())
    }

    fn number(&self, base: u64, path: FieldPath, size: u64) -> Result<u64, ContractError> {
        let address = self.field(base, path)?;
        self.memory.number(address, size).ok_or(ContractError::Unread { what: path.2, address })
    }

    fn size(&self, type_name: &'static str) -> Result<u64, ContractError> {
        self.descriptor.size(type_name).ok_or(ContractError::NotDescribed(type_name))
    }

    /// Reads a stored CONTEXT.
    fn context(&self, address: u64, what: &'static str) -> Result<Context, ContractError> {
        Context::read(self.descriptor.arch(), self.memory, address)
            .ok_or(ContractError::Unread { what, address })
    }

    /// Copies a structure whose fields are registers into `context`.
    fn registers(
        &self,
        base: u64,
        type_name: &'static str,
        context: &mut Context,
    ) -> Result<(), ContractError> {
        let info = self.descriptor.type_info(type_name).ok_or(ContractError::NotDescribed(type_name))?;
        for (name, offset) in info.fields() {
            let address = base.wrapping_add(offset);
            let value = self
                .memory
                .number(address, self.descriptor.pointer_size())
                .ok_or(ContractError::Unread { what: type_name, address })?;
            // Besides registers, HijackArgs has other fields (on x64, the structure of callee-saved
            // registers).
            if !context.set_register(name, value) && type_name != HIJACK_ARGS {
                return Err(ContractError::UnknownRegister(type_name));
            }
        }
        Ok(())
    }
}

/// A type, its field, and both in the form shown in errors.
type FieldPath = (&'static str, &'static str, &'static str);

macro_rules! field_path {
    ($type:literal, $field:literal) => {
        ($type, $field, concat!($type, ".", $field))
    };
}
pub(super) use field_path;

const CALLEE_SAVED: &str = "CalleeSavedRegisters";
const HIJACK_ARGS: &str = "HijackArgs";

impl<M: Memory> FieldReader<'_, M> {
    /// Sets `context` to the managed code that `frame` leads to. Frames that hold no registers do
    /// not change it.
    pub(super) fn update(&self, frame: ExplicitFrame, context: &mut Context) -> Result<(), ContractError> {
        let Some(kind) = frame.kind else { return Ok(()) };
        let address = frame.address;
        match kind {
            ExplicitKind::InlinedCallFrame => self.inlined_call(address, context),
            ExplicitKind::SoftwareExceptionFrame => self.software_exception(address, context),
            _ if kind.is_transition() => self.transition(address, context),
            ExplicitKind::FuncEvalFrame => Err(ContractError::Refused("FuncEvalFrame")),
            ExplicitKind::ResumableFrame | ExplicitKind::RedirectedThreadFrame => {
                let stored = self.pointer(address, field_path!("ResumableFrame", "TargetContextPtr"))?;
                *context = self.context(stored, "ResumableFrame.TargetContext")?;
                Ok(())
            }
            ExplicitKind::FaultingExceptionFrame => self.faulting_exception(address, context),
            ExplicitKind::HijackFrame => self.hijack(address, context),
            ExplicitKind::TailCallFrame => self.tail_call(address, context),
            ExplicitKind::InterpreterFrame => Err(ContractError::Refused("InterpreterFrame")),
            _ => Ok(()),
        }
    }

    /// Whether an InlinedCallFrame's call is in progress.
    pub(super) fn has_active_call(&self, address: u64) -> Result<bool, ContractError> {
        let active = self.pointer(address, field_path!("InlinedCallFrame", "CallerReturnAddress"))? != 0;
        let on_x86 = self.descriptor.arch() == Arch::X86;
        Ok(active && (!on_x86 || self.pointer(address, field_path!("InlinedCallFrame", "CallSiteSP"))? != 0))
    }

    /// The return address that an InlinedCallFrame holds.
    pub(super) fn inlined_return_address(&self, address: u64) -> Result<u64, ContractError> {
        self.pointer(address, field_path!("InlinedCallFrame", "CallerReturnAddress"))
    }

    fn inlined_call(&self, address: u64, context: &mut Context) -> Result<(), ContractError> {
        if !self.has_active_call(address)? {
            return Ok(());
        }
        let ip = self.inlined_return_address(address)?;
        let sp = self.pointer(address, field_path!("InlinedCallFrame", "CallSiteSP"))?;
        let fp = self.pointer(address, field_path!("InlinedCallFrame", "CalleeSavedFP"))?;
        context.set_ip(ip);
        context.set_sp(sp);
        context.set_fp(fp);
        Ok(())
    }

    /// Takes the instruction pointer, the stack pointer and the callee-saved registers from the
    /// stored context.
    fn software_exception(&self, address: u64, context: &mut Context) -> Result<(), ContractError> {
        let at = self.field(address, field_path!("SoftwareExceptionFrame", "TargetContext"))?;
        let stored = self.context(at, "SoftwareExceptionFrame.TargetContext")?;
        let saved =
            self.descriptor.type_info(CALLEE_SAVED).ok_or(ContractError::NotDescribed(CALLEE_SAVED))?;
        for (name, _) in saved.fields() {
            let value = stored.register(name).ok_or(ContractError::UnknownRegister(CALLEE_SAVED))?;
            context.set_register(name, value);
        }
        context.set_ip(stored.ip());
        context.set_sp(stored.sp());
        Ok(())
    }

    /// The TransitionBlock is the lowest part of the stack that the Frame covers: the caller's
    /// stack begins where the block ends. (On x86, the callee's arguments are then still on the
    /// stack. Removing them would need GCInfo.)
    fn transition(&self, address: u64, context: &mut Context) -> Result<(), ContractError> {
        let block = self.pointer(address, field_path!("FramedMethodFrame", "TransitionBlockPtr"))?;
        let ip = self.pointer(block, field_path!("TransitionBlock", "ReturnAddress"))?;
        let saved = self.field(block, field_path!("TransitionBlock", "CalleeSavedRegisters"))?;
        let size = self.size("TransitionBlock")?;
        self.registers(saved, CALLEE_SAVED, context)?;
        context.set_ip(ip);
        context.set_sp(block.wrapping_add(size));
        Ok(())
    }

    fn faulting_exception(&self, address: u64, context: &mut Context) -> Result<(), ContractError> {
        if self.descriptor.arch() == Arch::X86 {
            return Err(ContractError::Refused("FaultingExceptionFrame of x86"));
        }
        let at = self.field(address, field_path!("FaultingExceptionFrame", "TargetContext"))?;
        *context = self.context(at, "FaultingExceptionFrame.TargetContext")?;
        context.clear_xstate();
        Ok(())
    }

    fn hijack(&self, address: u64, context: &mut Context) -> Result<(), ContractError> {
        let ip = self.pointer(address, field_path!("HijackFrame", "ReturnAddress"))?;
        let args = self.pointer(address, field_path!("HijackFrame", "HijackArgsPtr"))?;
        let after = |size: u64| args.wrapping_add(size);
        let sp = match self.descriptor.arch() {
            Arch::X64 => {
                let saved = self.field(args, field_path!("HijackArgs", "CalleeSavedRegisters"))?;
                self.registers(saved, CALLEE_SAVED, context)?;
                // Windows stores the stack pointer. Elsewhere the arguments lie right below it.
                match self.descriptor.offset(HIJACK_ARGS, "Rsp") {
                    Some(_) => self.pointer(args, field_path!("HijackArgs", "Rsp"))?,
                    None => after(self.size(HIJACK_ARGS)?),
                }
            }
            Arch::Arm64 => {
                self.registers(args, HIJACK_ARGS, context)?;
                let size = self.size(HIJACK_ARGS)?;
                // The stack is aligned to 16 bytes.
                after(size + size % 16)
            }
            Arch::X86 => {
                self.registers(args, HIJACK_ARGS, context)?;
                after(self.size(HIJACK_ARGS)?)
            }
        };
        context.set_ip(ip);
        context.set_sp(sp);
        Ok(())
    }

    /// Only x86 Windows has these. The caller's stack begins right after the Frame.
    fn tail_call(&self, address: u64, context: &mut Context) -> Result<(), ContractError> {
        if self.descriptor.arch() != Arch::X86 {
            return Err(ContractError::Refused("TailCallFrame on another architecture than x86"));
        }
        let ip = self.pointer(address, field_path!("TailCallFrame", "ReturnAddress"))?;
        let saved = self.field(address, field_path!("TailCallFrame", "CalleeSavedRegisters"))?;
        let size = self.size("TailCallFrame")?;
        self.registers(saved, CALLEE_SAVED, context)?;
        context.set_ip(ip);
        context.set_sp(address.wrapping_add(size));
        Ok(())
    }

    /// Like [`number`](Self::number), for the other files of this module.
    pub(super) fn read(&self, base: u64, path: FieldPath, size: u64) -> Result<u64, ContractError> {
        self.number(base, path, size)
    }

    /// The pointer that lies right before a field.
    pub(super) fn pointer_before(&self, base: u64, path: FieldPath) -> Result<u64, ContractError> {
        let at = self.field(base, path)?.wrapping_sub(self.descriptor.pointer_size());
        let read = self.memory.number(at, self.descriptor.pointer_size());
        read.ok_or(ContractError::Unread { what: path.2, address: at })
    }

    /// Like [`pointer`](Self::pointer), for a field that the descriptor may lack.
    pub(super) fn pointer_if_described(
        &self,
        base: u64,
        path: FieldPath,
    ) -> Result<Option<u64>, ContractError> {
        match self.descriptor.offset(path.0, path.1) {
            Some(_) => self.pointer(base, path).map(Some),
            None => Ok(None),
        }
    }
}
