// SPDX-License-Identifier: Apache-2.0
// What an error says: EXPECT_THAT(message_of([&] { intern_spec(layout, {4}, at::kFloat); }), HasSubstr("has 1 dims")).
// "no error" if nothing is thrown; errors of other types than `Expected` pass through.
#pragma once
#include <string>

#include "hyper_parallel/base/error.h"

namespace hyper_parallel::testing_support {

template <class Expected = Error, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Expected& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace hyper_parallel::testing_support
