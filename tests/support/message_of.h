// SPDX-License-Identifier: Apache-2.0
// What an error says: EXPECT_THAT(message_of([] { intern_spec(...); }), HasSubstr("...")). "no error" when nothing, or another type, is
// thrown... the latter passes through.
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
