use std::fmt::Write;

use crate::{Arg, Function, Immediate, Program, Value};

/// The program as MIL-like text: one line for each operation, weights by name and type.
pub fn print_program(program: &Program) -> String {
    let mut out = format!("program<{}>\n", Program::opset(program.spec_version));
    for function in program.functions.values() {
        print_function(program, function, &mut out);
    }
    out
}

fn print_function(program: &Program, function: &Function, out: &mut String) {
    let inputs = function.inputs.iter().map(|id| {
        let var = function.var(*id);
        format!("{}: {}", var.name, var.ty)
    });
    let _ = writeln!(out, "func {}({}) {{", function.name, inputs.collect::<Vec<_>>().join(", "));
    for op in function.compute_ops() {
        let args =
            op.inputs.iter().map(|(name, arg)| format!("{name} = {}", print_arg(program, function, arg)));
        let results =
            op.outputs.iter().map(|id| format!("{}: {}", function.var(*id).name, function.var(*id).ty));
        let results = results.collect::<Vec<_>>().join(", ");
        let arrow = if results.is_empty() { "" } else { " = " };
        let _ = writeln!(out, "    {results}{arrow}{}({})", op.kind, args.collect::<Vec<_>>().join(", "));
    }
    let outputs = function.outputs.iter().map(|id| function.var(*id).name.as_str());
    let _ = writeln!(out, "}} -> ({})", outputs.collect::<Vec<_>>().join(", "));
}

fn print_arg(program: &Program, function: &Function, arg: &Arg) -> String {
    match arg {
        Arg::Var(id) => match &function.var(*id).value {
            Some(value) => print_value(program, value),
            None => function.var(*id).name.clone(),
        },
        Arg::List(ids) => {
            let names = ids.iter().map(|id| print_arg(program, function, &Arg::Var(*id)));
            format!("({})", names.collect::<Vec<_>>().join(", "))
        }
        Arg::Value(value) => print_value(program, value),
    }
}

fn print_value(program: &Program, value: &Value) -> String {
    const SHOWN: usize = 8;
    fn list<T>(v: &[T], scalar: bool, show: impl Fn(&T) -> String) -> String {
        let shown = v.iter().take(SHOWN).map(show).collect::<Vec<_>>().join(", ");
        match v.len() {
            1 if scalar => shown,
            n if n > SHOWN => format!("[{shown}, … {n}]"),
            _ => format!("[{shown}]"),
        }
    }
    match value {
        Value::Weight(ty, id) => format!("@{}: {ty}", program.weights[id.0].name),
        Value::Immediate(ty, immediate) => {
            let scalar = ty.shape.is_empty();
            match immediate {
                Immediate::Floats(v) => list(v, scalar, |v| format!("{v:?}")),
                Immediate::Ints(v) => list(v, scalar, ToString::to_string),
                Immediate::Bools(v) => list(v, scalar, ToString::to_string),
                Immediate::Strings(v) => list(v, scalar, |v| format!("{v:?}")),
            }
        }
    }
}
