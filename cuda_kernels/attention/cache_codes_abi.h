// What the host hands to attention about a cache of 8-bit codes: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

// Keys are codes times k[head of keys * k_head + element * k_element], values likewise. by_reciprocal: new tokens are
// multiplied by 1 / scale, or by 0 where the scale is 0, instead of divided by the scale.
struct CacheScales {
  const void* k;
  const void* v;
  unsigned int k_head;
  unsigned int k_element;
  unsigned int v_head;
  unsigned int v_element;
  unsigned int by_reciprocal;
};

}  // namespace onnxopt
