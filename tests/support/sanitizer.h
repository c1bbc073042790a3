// SPDX-License-Identifier: Apache-2.0
//
// Whether this build has a sanitizer: its own memory is not the product's, so resident sizes say nothing.
#pragma once

namespace pointsman::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace pointsman::testing
