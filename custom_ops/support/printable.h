// Text of files, quoted in messages.
#pragma once

#include <string>

namespace onnxopt {

constexpr std::size_t kLongestQuote = 400;

// The text on one line: a question mark for every byte that is no printable ASCII, as callers such as Python take
// messages to be UTF-8, and an end cut off where it is long.
inline std::string Printable(std::string text) {
  if (text.size() > kLongestQuote) text = text.substr(0, kLongestQuote) + "...";
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace onnxopt
