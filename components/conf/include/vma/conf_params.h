/*
 * The parameter table: X(type, field, NAME, label, default, min, max, form, text).
 * `field` is NAME without VMA_, in lower case. `form` names the text form used by parser, banner and reference.
 */
#ifndef VMA_CONF_PARAMS_H
#define VMA_CONF_PARAMS_H

#define VMA_CONF_PARAMS(X) X(INT, rx_bufs, "VMA_RX_BUFS", "Rx Mem Bufs", 200000, 64, 100000000, PLAIN, "upper bound")

#endif
