// SPDX-License-Identifier: Apache-2.0
//
// Casts between floating-point types, as Python code of PyTorch writes them.
#pragma once

#include <string_view>

#include "audit/python/query.h"

namespace pointsman::audit::rules {

enum class Float : uint8_t { kUnknown, kHalf, kBfloat16, kFloat32 };  // kFloat32: or wider
inline bool is_narrow(Float f) { return f == Float::kHalf || f == Float::kBfloat16; }
const char* float_name(Float f);  // "float16", "bfloat16", "float32"

// Of torch.float16, torch.half, "fp16", "bfloat16", ...; of a name with one definition, that of the definition.
Float float_type(const python::Expr& e);
Float float_type(std::string_view text);  // "fp16", "float16", "half", "bf16", "bfloat16", "fp32", ...
// Of a call that casts its receiver: x.half(), x.float(), x.to(torch.float16), x.to(dtype=...), x.type(torch.float32).
Float cast_of(const python::Expr& call);
// The type that the nearest cast on the way to `e` gave it, kUnknown without one; `cast` is that cast.
Float nearest_cast(const python::Expr& e, const python::Expr** cast = nullptr);

}  // namespace pointsman::audit::rules
